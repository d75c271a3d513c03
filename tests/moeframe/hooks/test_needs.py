from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, ToolNeed, needs
from moeframe.hooks.needs import unusable_reasons, why_no_cuda


def _offer(**given) -> DispatcherOffer:
    return DispatcherOffer(name="ring", summary="s", build=print, traits=print, needs=Needs(**given))


def _module(**given) -> DispatcherOffer:
    return _offer(modules=(ModuleNeed(install="Install it so.", **given),))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine look as one with a GPU and a CUDA build of torch."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(needs, "_driver_files", lambda: True)
    monkeypatch.setattr(needs, "version", lambda name: "2.13.0+cu130")


def test_an_offer_without_needs_is_usable(gpu: None) -> None:
    assert unusable_reasons(_offer()) == ()
    assert unusable_reasons(_offer(), device_kind="cpu") == ()
    assert unusable_reasons(_offer(), device_kind="cuda") == ()


def test_a_missing_module_says_how_to_get_it() -> None:
    assert unusable_reasons(_module(name="no_such_module")) == (
        "the module no_such_module is not installed. Install it so.",
    )


def test_a_module_below_a_package_is_found_without_importing_the_package(site) -> None:
    site.module("heavy.inner.part", "raise RuntimeError")
    site.module("heavy.__init__", "raise RuntimeError")
    assert unusable_reasons(_module(name="heavy.inner.part")) == ()
    assert len(unusable_reasons(_module(name="heavy.inner.absent"))) == 1
    assert "heavy" not in sys.modules


@pytest.mark.parametrize(
    ("installed", "wanted", "usable"),
    [("0.6.1", ">=0.6,<0.7", True), ("0.7.0", ">=0.6,<0.7", False), ("0.6.0.dev1", ">=0.5", True)],
)
def test_a_version_is_read_from_the_distribution(site, installed: str, wanted: str, usable: bool) -> None:
    site.module("ringlib", "raise RuntimeError")
    site.metadata("ring-lib", installed, "")
    reasons = unusable_reasons(_module(name="ringlib", distribution="ring-lib", version=wanted))
    expected = () if usable else (f"it needs ring-lib {wanted}, and {installed} is installed. Install it so.",)
    assert reasons == expected


def test_a_module_without_its_distribution_has_no_known_version(site) -> None:
    site.module("ringlib", "")
    (reason,) = unusable_reasons(_module(name="ringlib", version=">=1"))
    assert "no distribution of that name" in reason


def test_a_module_of_another_generation_lacks_the_names_that_are_needed(site) -> None:
    site.module("ringlib.__init__", "from .buffer import Old\nraise RuntimeError")
    (reason,) = unusable_reasons(_module(name="ringlib", attributes=("Ring", "Torus")))
    assert reason == "the installed module ringlib has no Ring or Torus (it has Old). Install it so."
    assert unusable_reasons(_module(name="ringlib", attributes=("Ring", "Old"))) == ()


def test_a_module_whose_source_does_not_tell_its_names_counts_as_usable(site) -> None:
    site.module("ringlib.__init__", "from .buffer import *")
    assert unusable_reasons(_module(name="ringlib", attributes=("Ring",))) == ()


@pytest.mark.parametrize(("installed", "usable"), [("1.0.0", False), ("1.0.0+abc", True), ("1.2.1", True)])
def test_another_project_of_the_same_name_is_named(site, installed: str, usable: bool) -> None:
    site.module("ringlib", "")
    site.metadata("ring-lib", installed, "")
    offer = _module(name="ringlib", distribution="ring-lib", impostors={"1.0.0": "not Ring"})
    expected = () if usable else ("the installed ring-lib 1.0.0 is not Ring. Install it so.",)
    assert unusable_reasons(offer) == expected


def test_a_tool_is_looked_for_on_the_path_and_below_its_home(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer = _offer(tools=(ToolNeed(name="ringcc", homes=("RING_HOME",), install="Install it so."),))
    monkeypatch.delenv("RING_HOME", raising=False)
    assert unusable_reasons(offer) == ("the program ringcc is not found on PATH and $RING_HOME/bin. Install it so.",)
    tool = tmp_path / "bin" / "ringcc"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setenv("RING_HOME", str(tmp_path))
    assert unusable_reasons(offer) == ()
    monkeypatch.delenv("RING_HOME")
    monkeypatch.setenv("PATH", str(tool.parent))
    assert unusable_reasons(offer) == ()


def test_every_reason_is_given() -> None:
    offer = _offer(
        modules=(ModuleNeed(name="absent_a", install="A."), ModuleNeed(name="absent_b", install="B.")),
        device_kinds=("cuda",),
    )
    assert len(unusable_reasons(offer, device_kind="cpu")) == 3


def test_an_offer_for_cuda_cannot_run_in_a_job_on_the_cpu(gpu: None) -> None:
    (reason,) = unusable_reasons(_offer(device_kinds=("cuda",)), device_kind="cpu")
    assert reason.startswith("it runs on cuda devices, and this job on cpu.")


def test_an_offer_for_cuda_is_usable_where_a_gpu_shows(gpu: None) -> None:
    assert unusable_reasons(_offer(device_kinds=("cuda",))) == ()
    assert unusable_reasons(_offer(device_kinds=("cuda",)), device_kind="cuda") == ()


def test_cuda_devices_that_are_hidden_do_not_count(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        (reason,) = unusable_reasons(_offer(device_kinds=("cuda",)))
        assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides" in reason
    assert unusable_reasons(_offer()) == ()


def test_without_a_device_file_there_is_no_cuda(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_driver_files", lambda: False)
    (reason,) = unusable_reasons(_offer(device_kinds=("cuda",)))
    assert "no CUDA device" in reason


def test_a_cpu_build_of_torch_has_no_cuda_whatever_the_machine(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "version", lambda name: "2.13.0+cpu")
    assert "torch 2.13.0+cpu is a CPU build" in str(why_no_cuda())


def test_without_torch_there_is_no_cuda(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(needs, "version", absent)
    assert "torch is not installed" in str(why_no_cuda())


@pytest.mark.parametrize(
    ("answer", "usable"), [("9.0\n9.0\n", True), ("12.0\n", True), ("9.0\n8.6\n", False), ("[N/A]\n", True)]
)
def test_the_weakest_gpu_decides_on_the_compute_capability(
    gpu: None, monkeypatch: pytest.MonkeyPatch, answer: str, usable: bool
) -> None:
    monkeypatch.setattr(needs.shutil, "which", lambda name: name)
    monkeypatch.setattr(
        needs.subprocess, "run", lambda *args, **kw: subprocess.CompletedProcess(args, 0, stdout=answer, stderr="")
    )
    reasons = unusable_reasons(_offer(device_kinds=("cuda",), compute_capability=(9, 0)))
    expected = (
        () if usable else ("it needs compute capability 9.0, and a GPU of this machine has 8.6. Use a newer GPU.",)
    )
    assert reasons == expected


def test_looking_at_needs_imports_no_torch() -> None:
    program = (
        "import sys; from moeframe.hooks.catalog import *; from moeframe.hooks import *; "
        "o = DispatcherOffer(name='a', summary='s', build=print, traits=print, needs=Needs(device_kinds=('cuda',), "
        "modules=(ModuleNeed(name='torch.distributed', install='x', distribution='torch', version='>=2'),))); "
        "unusable_reasons(o); unusable_reasons(o, device_kind='cuda'); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
