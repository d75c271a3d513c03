"""Importing the library, and what its failures mean."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

from moeframe import trace
from moeframe.errors import JobFailedError, UnavailableOfferError

__all__ = ["advice_on", "import_library", "working"]

_REBUILD: Final = "Build DeepEP again, against the torch and the CUDA toolkit of this environment."
_OTHER_RANK: Final = (
    "This rank waited about 100 s for another one: look in the other ranks' logs for the first error. Without one, a "
    "rank makes fewer calls than the others (a layer or a micro-batch that it skips), or it is slow, as while it "
    "compiles kernels."
)
_ADVICE: Final = (
    (r"timeout \(dispatch CPU\)|CPU recv timeout|timeout check failed|DeepEP (?:error: )?timeout|TIMEOUT", _OTHER_RANK),
    (
        r"MAX_NUM_OF_TOKENS_PER_RANK must be multiple of NUM_OF_TOKENS_PER_CHUNK",
        "The variables NUM_OF_TOKENS_PER_CHUNK_* ask for chunks that do not divide the buffer's tokens, a multiple of "
        "64: unset them, or use 64, 32 or 16.",
    ),
    (
        r"no kernel image",
        "DeepEP was built for another GPU: build it with TORCH_CUDA_ARCH_LIST naming this one (9.0 for Hopper, 10.0 "
        "for Blackwell).",
    ),
    (
        r"Failed to compile the code|nvcc: (?:command )?not found|nvcc: No such file",
        "HybridEP compiles kernels with $CUDA_HOME/bin/nvcc: install the CUDA toolkit of torch's CUDA version, set "
        "CUDA_HOME, and see the compiler's own message above.",
    ),
    (r"bad any_cast|Kernel cache type mismatch", "Stale compiled kernels: empty HYBRID_EP_CACHE_DIR."),
    (
        r"lib(?:cudart|cublas|cublasLt|nvrtc)\.so\.\d+",
        f"The library was built for another CUDA major version than torch brings. {_REBUILD}",
    ),
    (r"libnvshmem|NVSHMEM", "NVSHMEM is missing or of another version than DeepEP was built with. " + _REBUILD),
    (
        r"NCCL",
        "DeepEP 2 needs the NCCL that it was built with, and one NCCL in the process: install that version of "
        "nvidia-nccl, or build DeepEP against the one that torch loads.",
    ),
    (
        r"undefined symbol|cannot open shared object|DLL load failed|has no attribute|No module named '(?:deep_ep_cpp|"
        r"hybrid_ep_cpp|deep_ep\._C)'",
        f"The library does not fit the installed torch. {_REBUILD}",
    ),
    (r"No module named 'pynvml'", "Install nvidia-ml-py (the extra `deepep` brings it)."),
    (
        r"No NVLink connection|NVLink|peer access|P2P",
        "Its kernels write into the other GPUs' memory: use GPUs that NVLink joins, or the dispatcher alltoall.",
    ),
    (
        r"unspecified launch failure|illegal memory access|an illegal instruction|device-side assert",
        "A kernel stopped, here or in an earlier call: see what it printed above; CUDA_LAUNCH_BLOCKING=1 shows the "
        "call. A kernel also stops so when it has waited about 100 s for another rank.",
    ),
    (r"out of memory", "`moeframe plan RECIPE` shows what the buffers take. Lower train.micro_batch_size or seq_len."),
)


def advice_on(text: str) -> str | None:
    """Return what to do about a failure of the library, by its text; None for one that is not known."""
    return next((advice for pattern, advice in _ADVICE if re.search(pattern, text)), None)


def import_library(offer: str) -> ModuleType:
    """Import `deep_ep` for the dispatcher of that name.

    Raises:
        UnavailableOfferError: importing failed, with the cause and what to do.
    """
    try:
        return importlib.import_module("deep_ep")
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        advice = advice_on(text) or _REBUILD
        reason = f"importing deep_ep failed: {text.rstrip('.')}. {advice}"
        raise UnavailableOfferError(kind="dispatcher", name=offer, reasons=(reason,)) from error


@contextmanager
def working(rank: int, what: str) -> Iterator[None]:
    """Have failures of a call say rank, place in the job, what was being done, and what to do.

    Raises:
        JobFailedError: the library raised; it is the cause.
    """
    try:
        yield
    except (RuntimeError, AssertionError, ValueError, TypeError, AttributeError) as error:
        advice = advice_on(str(error)) or "It is an error of the library that moeframe knows nothing about."
        raise JobFailedError(
            f"rank {rank} of the ep group, {trace.current()}: {what} failed: "
            f"{type(error).__name__}: {str(error).strip().rstrip('.') or 'no message'}. {advice}"
        ) from error
