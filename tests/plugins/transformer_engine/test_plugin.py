"""What is refused before anything starts, and in which words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from moeframe_transformer_engine import installation, plugin

from moeframe.config.compose import compose
from moeframe.config.load import read_recipe
from moeframe.errors import PluginError, RecipeError
from moeframe.hooks import needs
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.precision import Precision

TINY = Path(__file__).parents[3] / "recipes/deepseek_v3/tiny.yaml"
FP8 = {"compute.options.precision": "fp8_blockwise", "model.qk_rope_head_dim": 16}


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Pretend that these distributions are installed, and that there is a GPU of this compute capability."""
    versions: dict[str, str] = {"torch": "2.11.0+cu130"}

    def version(name):
        if name not in versions:
            raise installation.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(needs, "version", version)
    monkeypatch.setattr(installation, "version", version)
    monkeypatch.setattr(installation, "requires", lambda name: [])
    monkeypatch.setattr(needs, "_driver_files", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine/__init__.py").write_text("raise ImportError('checking imports nothing')")
    monkeypatch.syspath_prepend(tmp_path)
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 9.0\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    versions.update({"transformer-engine": "2.20.2", "transformer-engine-cu13": "2.20.2"})
    return versions


def problems(device_kind="cuda", **overrides):
    given = {"compute.name": "te", "train.precision": "bfloat16", **overrides}
    loaded = read_recipe(TINY, overrides=[f"{key}={value}" for key, value in given.items()])
    try:
        compose(loaded, Catalog(build_plugin_manager(environment={})), device_kind=device_kind)
    except RecipeError as error:
        return [str(problem) for problem in error.problems]
    return []


def test_offering_imports_no_torch():
    code = "import sys, moeframe_transformer_engine.plugin as p; p.moeframe_offer_computes()"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_traits_follow_the_option():
    (offer,) = plugin.moeframe_offer_computes()
    policy = Precision.of("bfloat16")
    traits = {name: offer.traits(offer.options(precision=name), policy) for name in ("bfloat16", "fp8_blockwise")}
    assert traits["bfloat16"].saves_expert_input
    assert not traits["fp8_blockwise"].saves_expert_input  # a cast copy
    for one in traits.values():
        assert one.splits_expert_backward
        assert not one.saves_expert_output
        assert not one.saves_norm_output
        assert one.row_multiple == 1  # the plugin fills rows up itself
        assert one.compiles_dtypes == ()


@pytest.mark.parametrize("options", [{}, FP8])
def test_a_fitting_installation_is_taken(installed, options):
    assert problems(**options) == []


def test_a_machine_without_gpu_is_refused(installed, monkeypatch):
    monkeypatch.setattr(needs, "_driver_files", lambda: False)
    (found,) = problems(None, **FP8)
    assert "runs on cuda devices, and this machine has no CUDA device" in found


def test_an_absent_installation_is_told_how_to_come():
    (found, *_) = problems(None)
    assert "the module transformer_engine is not installed. Run `python -m pip install" in found


def test_a_version_that_breaks_beside_torch_is_refused(installed):
    installed.update({"transformer-engine": "2.19.0", "transformer-engine-cu13": "2.19.0"})
    assert "needs transformer-engine >=2.20.2, and 2.19.0 is installed" in problems()[0]


def test_a_core_for_another_cuda_than_torch_is_refused(installed):
    installed["transformer-engine-cu12"] = installed.pop("transformer-engine-cu13")
    (found,) = problems()
    assert "transformer-engine-cu12 2.20.2 is for CUDA 12, and the installed torch for CUDA 13" in found
    assert "transformer-engine[pytorch,core-cu13]" in found


@pytest.mark.parametrize(
    ("requirement", "refused"),
    [("nvidia-cuda-runtime-cu12==12.9.79", True), ("cuda-toolkit[cublas]==13.0.2", False), ("filelock", False)],
)
def test_the_cuda_of_a_torch_without_a_local_version_is_read_from_what_it_requires(
    installed, monkeypatch, requirement, refused
):
    installed["torch"] = "2.11.0"
    monkeypatch.setattr(installation, "requires", lambda name: [requirement])
    assert bool(problems()) == refused


def test_parts_of_two_versions_are_refused(installed):
    installed["transformer-engine-torch"] = "2.21.0"
    (found,) = problems()
    assert "transformer-engine is 2.20.2 and transformer-engine-torch is 2.21.0" in found


def test_a_missing_core_is_refused(installed):
    del installed["transformer-engine-cu13"]
    assert "transformer-engine 2.20.2 is installed without its core" in problems()[0]


def test_fp8_on_an_old_gpu_is_refused_and_bfloat16_is_not(installed, tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 8.0\n")
    (found,) = problems(**FP8)
    assert "it needs compute capability 9.0, and a GPU of this machine has 8.0" in found
    assert found.endswith("Or use compute.options.precision=bfloat16.")
    assert problems() == []


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("model.hidden_size", 72, "whose hidden_size is 72"),
        ("model.q_lora_rank", 40, "whose q_lora_rank is 40"),
        ("model.qk_rope_head_dim", 4, "whose kv_lora_rank + qk_rope_head_dim is 36"),
    ],
)
def test_sizes_that_fp8_products_do_not_take_are_refused(installed, key, value, words):
    found = [problem for problem in problems(**(FP8 | {key: value})) if words in problem]
    assert len(found) == 1
    assert "must be a multiple of 16. Nearest:" in found[0]
    assert problems(**{key: value}) == []


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_other_dtypes_are_refused(installed, precision):
    assert "compute 'te' computes in bfloat16 only" in problems(**{"train.precision": precision})[0]


def test_compiling_is_refused(installed):
    assert (
        "torch.compile can trace compute 'te' with its options in no dtype only"
        in problems(**{"train.compile": True})[0]
    )


FAILURES = {
    "/site/libtransformer_engine.so: undefined symbol: cublasLtGroupedMatrixLayoutInit_internal": "newer cuBLAS",
    "libcublas.so.12: cannot open shared object file: No such file or directory": "`core` alone is for CUDA 12",
    "libcudnn_cnn.so.9: undefined symbol: _ZTVN5cudnn7backend12OperationSetE, version libcudnn_graph": "Two versions",
    "/site/transformer_engine_torch.so: undefined symbol: _ZN3c104cuda9SetDeviceEa": "compiled for another torch",
    "Found empty `transformer-engine` meta package installed.": "Its core is missing",
    "Could not find shared object file for Transformer Engine torch lib.": "Its torch part is missing",
    "Transformer Engine package version mismatch. Found transformer-engine v2.20.2 and": "of different versions",
    "No module named 'onnxscript'": "A package that it needs is missing",
    "something else": '"moeframe[te]"',
}


@pytest.mark.parametrize("text", FAILURES)
def test_a_failing_import_says_what_to_do(monkeypatch, text):
    from moeframe_transformer_engine import loading

    def failing(name):
        raise ImportError(text)

    monkeypatch.setattr(loading.importlib, "import_module", failing)
    with pytest.raises(PluginError, match="cannot be imported beside torch") as caught:
        loading.load()
    assert text in str(caught.value)
    assert FAILURES[text] in str(caught.value)


def test_a_function_that_another_version_lacks_is_named(monkeypatch, fake):
    from moeframe_transformer_engine import loading

    class Empty:
        pass

    monkeypatch.setattr(loading.importlib, "import_module", lambda name: Empty)
    with pytest.raises(PluginError, match=r'does not have: .*general_gemm.* "moeframe\[te\]"'):
        loading.load()
