"""Where checkpoints lie and which are whole. Importable without torch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

__all__ = ["COMPLETE", "complete_steps", "step_directory"]

COMPLETE: Final = "COMPLETE"
"""The file that makes a checkpoint whole; written last."""

_STEP = re.compile(r"step-(\d+)")


def step_directory(checkpoints: Path, step: int) -> Path:
    """Return where the checkpoint after optimizer step `step` lies."""
    return checkpoints / f"step-{step}"


def complete_steps(checkpoints: Path) -> list[int]:
    """Return the steps of which a whole checkpoint exists, ascending."""
    found = (_STEP.fullmatch(path.name) for path in checkpoints.glob("step-*") if (path / COMPLETE).is_file())
    return sorted(int(match[1]) for match in found if match)
