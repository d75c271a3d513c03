"""Whether this machine has what an offer needs, as far as it can be known without importing torch or any module.

CUDA counts as present when a device file of the driver exists (``/dev/nvidia<n>``; ``/dev/dxg`` under WSL),
``CUDA_VISIBLE_DEVICES`` does not hide every device, and the installed torch is not a CPU build (its version ends in
``+cpu``). Whether that driver fits is found out by the job. A compute capability is asked of ``nvidia-smi``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from moeframe.hooks.entry_points import locate_module
from moeframe.hooks.offers import ModuleNeed, Needs, Offer, ToolNeed
from moeframe.hooks.top_level import top_level_names

__all__ = ["unusable_reasons", "why_no_cuda"]


def unusable_reasons(offer: Offer, *, device_kind: str | None = None) -> tuple[str, ...]:
    """Return why an offer cannot be used here, each with what to do; empty when nothing is known against it.

    Args:
        offer: the offer.
        device_kind: ``cpu`` or ``cuda``, on which the job will run; None for any that this machine has.
    """
    needs = offer.needs
    reasons = [reason for need in needs.modules if (reason := _module_reason(need)) is not None]
    reasons += [reason for tool in needs.tools if (reason := _tool_reason(tool)) is not None]
    device_reason = _device_reason(needs, device_kind)
    if device_reason is not None:
        reasons.append(device_reason)
    elif needs.compute_capability is not None and device_kind != "cpu" and why_no_cuda() is None:
        reasons += _capability_reasons(needs.compute_capability)
    return tuple(reasons)


def why_no_cuda() -> str | None:
    """Return why CUDA cannot be used on this machine, None when nothing is known against it. Imports no torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible.strip()!r} hides every CUDA device. Unset it."
    if not _driver_files():
        return "this machine has no CUDA device (no /dev/nvidia0). Run it on a machine with one."
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        return "torch is not installed. Install it as https://pytorch.org/get-started/locally says."
    if torch_version.endswith("+cpu"):
        return (
            f"the installed torch {torch_version} is a CPU build. "
            "Install a CUDA build as https://pytorch.org/get-started/locally says."
        )
    return None


def _driver_files() -> bool:
    """Whether the driver of an NVIDIA GPU shows a device."""
    device_files = Path("/dev")
    return any(re.fullmatch(r"nvidia\d+|dxg", file.name) for file in device_files.iterdir())


def _module_reason(need: ModuleNeed) -> str | None:
    distribution = need.distribution or need.name.partition(".")[0]
    impostor = _impostor(need, distribution)
    if impostor is not None:
        return f"{impostor}. {need.install}"
    if locate_module(need.name) is None:
        return f"the module {need.name} is not installed. {need.install}"
    return _attribute_reason(need) or _version_reason(need, distribution)


def _version_reason(need: ModuleNeed, distribution: str) -> str | None:
    if need.version is None:
        return None
    from packaging.specifiers import SpecifierSet

    try:
        found = version(distribution)
    except PackageNotFoundError:
        return (
            f"it needs {distribution} {need.version}, and the module {need.name} is there but no distribution of that "
            f"name, so its version is unknown. {need.install}"
        )
    if SpecifierSet(need.version).contains(found, prereleases=True):
        return None
    return f"it needs {distribution} {need.version}, and {found} is installed. {need.install}"


def _impostor(need: ModuleNeed, distribution: str) -> str | None:
    """Return what is installed in place of the distribution under its name."""
    if not need.impostors:
        return None
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return None
    what = need.impostors.get(found)
    return None if what is None else f"the installed {distribution} {found} is {what}"


def _attribute_reason(need: ModuleNeed) -> str | None:
    """Return a reason when the module's source shows that it binds none of the names; None when it cannot tell."""
    names = top_level_names(need.name) if need.attributes else None
    if names is None or names.intersection(need.attributes):
        return None
    wanted = " or ".join(need.attributes)
    shown = ", ".join(sorted(name for name in names if not name.startswith("_"))[:8]) or "nothing"
    return f"the installed module {need.name} has no {wanted} (it has {shown}). {need.install}"


def _tool_reason(tool: ToolNeed) -> str | None:
    homes = [Path(home) / "bin" for name in tool.homes if (home := os.environ.get(name))]
    if any(shutil.which(tool.name, path=str(folder)) for folder in homes) or shutil.which(tool.name):
        return None
    looked = " and ".join(["PATH", *(f"${name}/bin" for name in tool.homes)])
    return f"the program {tool.name} is not found on {looked}. {tool.install}"


def _device_reason(needs: Needs, device_kind: str | None) -> str | None:
    kinds = " or ".join(needs.device_kinds)
    if device_kind is not None and device_kind not in needs.device_kinds:
        return f"it runs on {kinds} devices, and this job on {device_kind}. Name another backend, or change the device."
    if device_kind is None and "cpu" in needs.device_kinds:
        return None
    if device_kind == "cpu":
        return None
    missing = why_no_cuda()
    return None if missing is None else f"it runs on {kinds} devices, and {missing}"


def _capability_reasons(needed: tuple[int, int]) -> list[str]:
    """Return a reason when the weakest visible GPU is too old; none when nvidia-smi cannot tell."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    answer = subprocess.run(  # noqa: S603  a fixed command
        [tool, "--query-gpu=compute_cap", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    found = [(int(major), int(minor)) for major, minor in re.findall(r"^(\d+)\.(\d+)\s*$", answer.stdout, re.MULTILINE)]
    if not found or min(found) >= needed:
        return []
    need, have = (".".join(map(str, one)) for one in (needed, min(found)))
    return [f"it needs compute capability {need}, and a GPU of this machine has {have}. Use a newer GPU."]
