"""What the plugin offers, and what is refused before a process starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from moeframe_deepep.options import DeepEPOptions, HybridEPOptions
from moeframe_deepep.plugin import moeframe_offer_dispatchers

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog, unusable_reasons
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.dispatcher import BufferRequest
from moeframe.protocols.precision import Precision

ROOT = Path(__file__).parents[3]
PROXY = ROOT / "recipes" / "deepseek_v3" / "proxy_2gpu.yaml"
DEEPEP, HYBRIDEP = moeframe_offer_dispatchers()
BF16 = Precision.of("bfloat16")


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a package `deep_ep` with this source in front of the path; it raises when it is imported."""

    def make(source: str, *, version: str = "") -> None:
        folder = tmp_path / "site"
        (folder / "deep_ep").mkdir(parents=True, exist_ok=True)
        (folder / "deep_ep" / "__init__.py").write_text(f"{source}\nraise RuntimeError\n")
        if version:
            info = folder / f"deep_ep-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: deep-ep\nVersion: {version}\n")
        monkeypatch.syspath_prepend(folder)

    return make


def refusals(*overrides: str) -> list[str]:
    """Return what is wrong with the proxy recipe, as a machine with the library would say."""
    try:
        compose(load_recipe(PROXY, overrides), Catalog(build_plugin_manager()), elsewhere=True)
    except RecipeError as error:
        return [f"{problem.path}: {problem.message}" for problem in error.problems]
    return []


def test_offering_imports_neither_torch_nor_the_library() -> None:
    program = (
        "import sys; from moeframe_deepep.plugin import moeframe_offer_dispatchers as offer; "
        "from moeframe.protocols.precision import Precision; "
        "[o.traits(o.options(), Precision.of('bfloat16')) for o in offer()]; "
        "sys.exit(bool({'torch', 'deep_ep'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "of_deepep", "of_hybridep"),
    [
        ("from .buffer import Buffer", "", "has no HybridEPBuffer (it has Buffer)"),
        ("from .buffer import Buffer\nfrom .hybrid import HybridEPBuffer", "", ""),
        ("from .buffers.elastic import ElasticBuffer, EPHandle", "", "has no HybridEPBuffer"),
        ("VERSION = 3", "has no Buffer or ElasticBuffer (it has VERSION)", "has no HybridEPBuffer"),
    ],
)
def test_each_dispatcher_needs_a_generation_of_the_library(library, source: str, of_deepep: str, of_hybridep) -> None:
    library(source)
    for offer, wanted in ((DEEPEP, of_deepep), (HYBRIDEP, of_hybridep)):
        reasons = [reason for reason in unusable_reasons(offer) if "deep_ep" in reason]
        assert len(reasons) == bool(wanted)
        assert all(wanted in reason and "https://github.com/deepseek-ai/DeepEP" in reason for reason in reasons)
    assert "deep_ep" not in sys.modules


@pytest.mark.parametrize(("version", "is_deepep"), [("1.0.0", False), ("1.0.0+3f1a", True), ("1.2.1", True)])
def test_the_project_of_that_name_on_the_package_index_is_not_taken_for_it(library, version: str, is_deepep) -> None:
    library("from .buffer import Buffer", version=version)
    named = [reason for reason in unusable_reasons(DEEPEP) if "is not DeepEP" in reason]
    assert bool(named) is not is_deepep


def test_hybridep_needs_a_compiler_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert [reason for reason in unusable_reasons(HYBRIDEP) if "nvcc is not found on PATH and $CUDA_HOME/bin" in reason]


def test_the_elastic_buffer_has_other_limits_than_the_buffer(library) -> None:
    library("from .buffers.elastic import ElasticBuffer\nfrom .buffers.legacy import Buffer")
    elastic, legacy = (DEEPEP.traits(DeepEPOptions(api=api), BF16) for api in ("auto", "buffer"))
    assert elastic.allows_group(16)
    assert not legacy.allows_group(16)
    assert (elastic.max_local_experts, legacy.max_local_experts) == (256, 1024)
    assert (elastic.hidden_multiple, legacy.hidden_multiple) == (128, 16)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["parallel.ep=1"], "parallel.ep: given 1; dispatcher 'deepep' works between 2, 4 or 8 ranks only"),
        (["model.hidden_size=7176"], "model.hidden_size: given 7176; dispatcher 'deepep' needs a multiple of 16"),
        (["model.hidden_size=8128"], "model.hidden_size: given 8128; dispatcher 'deepep' sends rows of at most 8112"),
        (["model.n_routed_experts=4096"], "which leaves 2048 of 4096 experts on each rank; dispatcher 'deepep' takes"),
        (["train.precision=float32"], "train.precision: given float32; dispatcher 'deepep' sends bfloat16 only"),
        (["dispatcher.options.num_sms=7"], "dispatcher.options: num_sms = 7 must be an even number of 2 or more"),
        (
            ["model.num_experts_per_tok=40", "model.n_group=1", "model.topk_group=1"],
            "model.num_experts_per_tok: given 40; dispatcher 'deepep' sends a token to at most 32 experts",
        ),
        (
            ["dispatcher.name=hybridep", "model.hidden_size=112"],
            "model.hidden_size: given 112; dispatcher 'hybridep' sends rows of at least 128",
        ),
        (
            ["dispatcher.name=hybridep", "model.n_routed_experts=66", "model.n_group=1", "model.topk_group=1"],
            "model.n_routed_experts: given 66; dispatcher 'hybridep' needs a multiple of 4",
        ),
    ],
)
def test_sizes_outside_of_the_library_s_limits_are_refused(overrides: list[str], problem: str) -> None:
    api = [] if "dispatcher.name=hybridep" in overrides else ["dispatcher.options.api=buffer"]
    found = refusals("dispatcher.name=deepep", *api, *overrides)
    assert any(problem in line for line in found), found


@pytest.mark.parametrize("name", ["deepep", "hybridep"])
def test_the_proxy_recipe_composes_with_each(name: str) -> None:
    assert refusals(f"dispatcher.name={name}") == []


def test_buffer_bytes_are_the_library_s_own_hint() -> None:
    from deep_ep import Buffer

    request = BufferRequest(ep_size=2, num_experts=64, hidden_size=7168, top_k=8, max_tokens=4096)
    queues, workspace = DEEPEP.buffers(DeepEPOptions(api="buffer"), request)
    row_bytes = (16 + 7168) * 2  # eight float32 gates, then the row
    assert queues.num_bytes == Buffer.get_dispatch_config(2).get_nvl_buffer_size_hint(row_bytes, 2)
    assert workspace.num_bytes == 32 * 2**20


def test_a_hybrid_buffer_holds_every_token_of_the_group() -> None:
    request = BufferRequest(ep_size=4, num_experts=64, hidden_size=1024, top_k=8, max_tokens=100)
    rows, gates, scales, routing = HYBRIDEP.buffers(HybridEPOptions(), request)
    assert rows.num_bytes == 512 * 4 * 1024 * 2  # at least 512 tokens of each rank
    assert gates.num_bytes == 512 * 4 * 64 * 4
    assert scales.num_bytes == 512 * 4 * 8 * 4
    assert routing.num_bytes == 512 * 4 * 64
