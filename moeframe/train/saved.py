"""Where checkpoints lie, which are whole, and what we wrote about them. Importable without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from moeframe.errors import JobFailedError, UserInputError
from moeframe.train.run_directory import RunDirectory

__all__ = [
    "COMPLETE",
    "FORMAT",
    "FREE_IN_MODEL",
    "complete_steps",
    "go_on",
    "read_description",
    "step_directory",
    "still_whole",
    "way_out",
]

COMPLETE: Final = "COMPLETE"
"""The file that makes a checkpoint whole; written last."""

FORMAT: Final = 1

FREE_IN_MODEL: Final = frozenset(
    {"init_from", "init_from_differs", "mtp_loss_weight", "aux_loss_alpha", "bias_update_speed"}
)
"""Keys of `model` that a resumed run may change: what the weights mean does not depend on them."""

_STEP = re.compile(r"step-(\d+)")


def step_directory(checkpoints: Path, step: int) -> Path:
    """Return where the checkpoint after optimizer step `step` lies."""
    return checkpoints / f"step-{step}"


def complete_steps(checkpoints: Path) -> list[int]:
    """Return the steps of which a whole checkpoint exists, ascending."""
    found = (_STEP.fullmatch(path.name) for path in checkpoints.glob("step-*") if (path / COMPLETE).is_file())
    return sorted(int(match[1]) for match in found if match)


def read_description(checkpoints: Path, step: int) -> dict[str, Any]:
    """Return what job.json of a whole checkpoint says.

    Raises:
        JobFailedError: job.json or torch's .metadata is not there or damaged, although the checkpoint is marked whole.
        UserInputError: the checkpoint has another format.
    """
    path = step_directory(checkpoints, step)
    try:
        if not (path / ".metadata").stat().st_size:
            raise ValueError(".metadata is empty")  # noqa: TRY301
        described = json.loads((path / "job.json").read_text(encoding="utf-8"))
        version, _, _ = described["format"], described["world_size"], described["model"].items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise JobFailedError(
            f"checkpoint of step {step} at {path} is broken: {type(error).__name__}: {error}. "
            f"{way_out(checkpoints, step)}"
        ) from error
    if version != FORMAT:
        raise UserInputError(
            f"{path} has checkpoint format {version}; this version reads format {FORMAT}. "
            f"Use the version of moeframe that wrote it (environment.json of the run names it)."
        )
    return dict(described)


def go_on(checkpoints: Path) -> str:
    """Return where a job that has ended can go on from."""
    steps, run_dir = complete_steps(checkpoints), RunDirectory(checkpoints.parent)
    if not steps:
        return f"No checkpoint is whole: start anew with {run_dir.start_command}; checkpoint.every=N saves on the way."
    return f"Then go on from step {steps[-1]} with {run_dir.resume_command}."


def still_whole(checkpoints: Path) -> str:
    """Return how to go on when a checkpoint could not be saved."""
    steps, run_dir = complete_steps(checkpoints), RunDirectory(checkpoints.parent)
    if not steps:
        return f"No checkpoint is whole yet: start anew with {run_dir.start_command} once the cause is gone."
    return (
        f"The checkpoint of step {steps[-1]} is whole: once the cause is gone, go on from there with "
        f"{run_dir.resume_command}."
    )


def way_out(checkpoints: Path, broken: int) -> str:
    """Return how to go on when the checkpoint of step `broken` cannot be read."""
    path, run_dir = step_directory(checkpoints, broken), RunDirectory(checkpoints.parent)
    older = [step for step in complete_steps(checkpoints) if step < broken]
    if older:
        return (
            f"The checkpoint of step {older[-1]} is whole too: move {path} away, and go on from step {older[-1]} with "
            f"{run_dir.resume_command}."
        )
    return f"{run_dir.path} has no older checkpoint that is whole: start a new run with {run_dir.start_command}."
