"""What is installed of Transformer Engine, read from metadata alone, and what to do when it does not fit. No torch."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final

__all__ = ["INSTALL", "VERSION", "advice", "disagreements"]

VERSION: Final = ">=2.20.2"
INSTALL: Final = (
    'Run `python -m pip install --no-build-isolation "moeframe[te]"`: 2.20.2 or newer, with its core for CUDA 13; its '
    "torch part is compiled for the installed torch (docs/backends.md)."
)

_CORES: Final = {12: "transformer-engine-cu12", 13: "transformer-engine-cu13"}

_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    (
        r"undefined symbol: cublas",
        "It was built for a newer cuBLAS than torch brings, as versions 2.13 to 2.19 are beside torch 2.11. " + INSTALL,
    ),
    (
        r"lib(cublas\w*|cudart|nvrtc|cudnn\w*)\.so[.\d]*: cannot open shared object",
        "A CUDA library is missing, mostly because its core is for another CUDA than torch: the extra `core` alone is "
        "for CUDA 12, `core-cu13` for CUDA 13. " + INSTALL,
    ),
    (
        r"libcudnn\w*\.so[.\d]*: (undefined symbol|version)",
        "Two versions of cuDNN meet in this process: torch has loaded its own, and Transformer Engine finds parts of "
        "another one, mostly the system's. Put torch's first, LD_LIBRARY_PATH=.../site-packages/nvidia/cudnn/lib "
        "(`python -m pip show -f nvidia-cudnn-cu13` says where), or remove the other one.",
    ),
    (
        r"undefined symbol: _Z",
        "Its torch part was compiled for another torch. Compile it beside this one: pip install --force-reinstall "
        "--no-deps --no-build-isolation --no-cache-dir transformer-engine-torch.",
    ),
    (
        r"[Ee]mpty `?transformer-engine|TE core package|for Transformer Engine core lib",
        "Its core is missing: neither of the extras `core-cu12` and `core-cu13` was installed. " + INSTALL,
    ),
    (
        r"No module named 'transformer_engine_torch'|for Transformer Engine torch lib",
        "Its torch part is missing: the extra `pytorch` was left out, or compiling it failed. " + INSTALL,
    ),
    (
        r"version mismatch",
        "Its parts (transformer-engine, its core, transformer-engine-torch) are of different versions. Uninstall all, "
        "then install them in one command. " + INSTALL,
    ),
    (
        r"No module named '(?!transformer_engine)",
        "A package that it needs is missing: it was installed with --no-deps, or copied. " + INSTALL,
    ),
)
"""Texts of failed imports, most telling first, and what they mean."""


def advice(error: BaseException) -> str:
    """Return what to do about a failed import."""
    text = str(error)
    return next((said for pattern, said in _ADVICE if re.search(pattern, text)), INSTALL)


def disagreements() -> list[str]:
    """Return what is wrong between the installed parts of Transformer Engine and torch; empty when nothing is known."""
    whole = _version("transformer-engine")
    if whole is None:
        return []
    cores = {major: found for major, name in _CORES.items() if (found := _version(name)) is not None}
    torch_cuda = _torch_cuda_major()
    problems = []
    if not cores:
        problems.append(f"transformer-engine {whole} is installed without its core. {INSTALL}")
    elif torch_cuda is not None and torch_cuda not in cores:
        core = f"{_CORES[min(cores)]} {cores[min(cores)]}"
        problems.append(
            f"{core} is for CUDA {min(cores)}, and the installed torch for CUDA {torch_cuda}. "
            f"Uninstall it, and install transformer-engine[pytorch,core-cu{torch_cuda}]."
        )
    others = {_CORES[major]: found for major, found in cores.items()}
    if (binding := _version("transformer-engine-torch")) is not None:
        others["transformer-engine-torch"] = binding
    problems += [
        f"transformer-engine is {whole} and {name} is {found}; all parts must have one version. {INSTALL}"
        for name, found in others.items()
        if found != whole
    ]
    return problems


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _torch_cuda_major() -> int | None:
    """Return which CUDA the installed torch was built for: from its version, else from the libraries it requires."""
    found = _version("torch")
    if found is None:
        return None
    if match := re.search(r"\+cu(\d{2})\d", found):
        return int(match[1])
    needed = " ".join(requires("torch") or ())
    if match := re.search(r"nvidia-cuda-runtime-cu(\d{2})\b", needed):
        return int(match[1])
    if match := re.search(r"(?:nvidia-cuda-runtime|cuda-toolkit)\S*?[=~>]=\s*(\d{2})\.", needed):
        return int(match[1])
    return None
