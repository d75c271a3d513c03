"""Failures of the library become messages that say where, and what to do."""

from __future__ import annotations

import sys

import pytest
from moeframe_deepep.library import import_library, working

from moeframe import trace
from moeframe.errors import JobFailedError, UnavailableOfferError


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("DeepEP error: timeout (dispatch CPU)", "look in the other ranks' logs"),
        ("DeepEP error: CPU recv timeout", "look in the other ranks' logs"),
        ("DeepEP timeout check failed: rank = 1, thread = 2", "look in the other ranks' logs"),
        ("MAX_NUM_OF_TOKENS_PER_RANK must be multiple of NUM_OF_TOKENS_PER_CHUNK", "unset them"),
        ("CUDA error: no kernel image is available for execution on the device", "TORCH_CUDA_ARCH_LIST"),
        ("Failed to compile the code, compile command: /bin/nvcc -std=c++17", "set CUDA_HOME"),
        ("sh: 1: nvcc: not found", "set CUDA_HOME"),
        ("No NVLink connection between GPU 0 and GPU 1, but allow_nvlink=True", "the dispatcher alltoall"),
        ("Kernel cache type mismatch for dispatch (key=...): bad any_cast", "empty HYBRID_EP_CACHE_DIR"),
        ("CUDA error: unspecified launch failure", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA error: an illegal memory access was encountered", "CUDA_LAUNCH_BLOCKING=1"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "moeframe plan"),
        ("something else", "moeframe knows nothing about"),
    ],
)
def test_a_failing_call_names_rank_place_call_and_advice(text: str, advice: str) -> None:
    cause = RuntimeError(text)

    with pytest.raises(JobFailedError) as caught, trace.span(step=7, layer=3, phase="dispatch"), working(1, "dispatch"):
        raise cause

    message = str(caught.value)
    assert message.startswith("rank 1 of the ep group, step 7, layer 3, dispatch (forward): dispatch failed: ")
    assert text in message
    assert advice in message
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (
            'ImportError("libcudart.so.12: cannot open shared object file: No such file or directory")',
            "another CUDA major version than torch brings",
        ),
        ('ImportError("deep_ep_cpp.so: undefined symbol: _ZN3c105ErrorC2E")', "does not fit the installed torch"),
        ("ImportError(\"No module named 'deep_ep_cpp'\")", "does not fit the installed torch"),
        ("ImportError(\"No module named 'pynvml'\")", "nvidia-ml-py"),
        ('ImportError("libnvshmem_host.so.3: cannot open shared object file")', "NVSHMEM is missing"),
        ('AssertionError("Invalid NCCL versions: a (loaded) v.s. b (expected)")', "the NCCL that it was built with"),
    ],
)
def test_a_library_that_cannot_be_imported_says_why_and_what_to_do(tmp_path, monkeypatch, error, advice) -> None:
    package = tmp_path / "deep_ep"
    package.mkdir()
    (package / "__init__.py").write_text(f"raise {error}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deep_ep", raising=False)

    with pytest.raises(UnavailableOfferError) as caught:
        import_library("deepep")

    assert caught.value.exit_code == 2
    assert advice in str(caught.value)
    assert "importing deep_ep failed" in str(caught.value)
