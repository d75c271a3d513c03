"""Reads torch's part of a checkpoint, in which an older version may have called tensors otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import load

from moeframe.checkpoint_names import names_in, renames

__all__ = ["load_state"]

_BY_TENSOR: Final = ("model", "optimizer")
"""Parts of the state whose first level are names of tensors."""


def load_state(state: dict[str, Any], path: Path, group: ProcessGroup | None) -> None:
    """Fill `state` from a checkpoint, by today's names whatever the checkpoint calls them. Collective.

    Args:
        state: ``model`` and ``optimizer`` by names of tensors, and whatever else the checkpoint holds.
        path: the checkpoint.
        group: the processes that load; None for one process alone.

    Raises:
        UserInputError: the checkpoint has names that are refused by now, or one tensor under two names.
        CheckpointException: torch could not read it.
    """
    names = _saved_names(state["model"], path) if renames() else {}
    asked = dict(state)
    for part in _BY_TENSOR:
        asked[part] = {names.get(name, name): value for name, value in state[part].items()}
    load(asked, checkpoint_id=path, process_group=group)
    for part in _BY_TENSOR:
        state[part] = {name: asked[part][names.get(name, name)] for name in state[part]}
    state.update({part: value for part, value in asked.items() if part not in _BY_TENSOR})


def _saved_names(tensors: dict[str, Any], path: Path) -> dict[str, str]:
    """Return the name in the checkpoint of each tensor of the model."""
    held = FileSystemReader(path).read_metadata().state_dict_metadata
    return names_in((key.removeprefix("model.") for key in held if key.startswith("model.")), tensors, path)
