"""Names in checkpoints: what an older version saved, under the names of today. Importable without torch.

Entries of `moeframe/changes.toml` with ``surface = "checkpoint"`` rename parameters and buffers. A name there is the
dotted name of a tensor of the model or a leading part of it, and ``*`` stands for one part: ``blocks.*.attend.norm``
covers ``blocks.3.attend.norm.weight``. The optimizer's state goes by the same names. What a checkpoint keeps of the
recipe goes by the entries with ``surface = "config"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from moeframe.config.ledger import Change, changes, tell
from moeframe.errors import Location, UserInputError

__all__ = ["current_name", "names_in", "recipe_section", "renames", "translate"]

T = TypeVar("T")
_RENAMES = ("rename", "move")


def renames() -> tuple[Change, ...]:
    """Return the entries that rename tensors."""
    return tuple(change for change in changes("checkpoint") if change.kind in _RENAMES)


def current_name(saved: str) -> str:
    """Return what a saved name is called now.

    Raises:
        UserInputError: it is an old name, and its time is over.
    """
    return _follow(saved)[0]


def translate(saved: Mapping[str, T], where: Path | None = None) -> dict[str, T]:
    """Return saved values by the names of today, and tell of old names once.

    Args:
        saved: values by the names in a checkpoint.
        where: the checkpoint, for messages.

    Raises:
        UserInputError: an old name's time is over, or two names mean the same value and disagree.
    """
    found: dict[str, T] = {}
    spelled: dict[str, str] = {}
    for name, value in saved.items():
        current, met = _follow(name, where)
        if current in found and not _same(found[current], value):
            raise UserInputError(
                f"{where or 'the checkpoint'} holds {spelled[current]} and {name} with different values, but both are "
                f"names of {current}. Keep one of them."
            )
        found[current], spelled[current] = value, name
        for change in met:
            _tell(change, where)
    return found


def names_in(held: Iterable[str], wanted: Iterable[str], where: Path | None = None) -> dict[str, str]:
    """Return under which name a checkpoint holds each of today's names; its own where nothing else is known.

    Args:
        held: names in the checkpoint.
        wanted: names of today.
        where: the checkpoint, for messages.

    Raises:
        UserInputError: as `translate`; a name that is held in two spellings counts as disagreeing.
    """
    by_current = translate({name: name for name in held}, where)
    return {name: by_current.get(name, name) for name in wanted}


def recipe_section(section: str, saved: Mapping[str, Any], where: Path | None = None) -> dict[str, Any]:
    """Return what a checkpoint keeps of a section of the recipe, with the keys and values of today.

    Raises:
        UserInputError: as `translate`.
    """
    found = dict(saved)
    for change in [c for c in changes("config") if c.kind in _RENAMES and c.old.startswith(f"{section}.")]:
        old, new = change.old.removeprefix(f"{section}."), change.new.removeprefix(f"{section}.")
        if old not in found:
            continue
        _require_open(change, where)
        value = change.renamed(found.pop(old))
        if new in found and not _same(found[new], value):
            raise UserInputError(
                f"{where or 'the checkpoint'} says {change.old} and {change.new} with different values, but both name "
                f"one key. Keep one of them."
            )
        found[new] = value
        _tell(change, where)
    return found


def _follow(name: str, where: Path | None = None) -> tuple[str, list[Change]]:
    """Return a name of today, and the entries that led to it; a name may have been changed more than once."""
    met: list[Change] = []
    while True:
        change = next((c for c in renames() if c not in met and _pattern(c.old).match(name)), None)
        if change is None:
            return name, met
        _require_open(change, where)
        match = _pattern(change.old).match(name)
        assert match is not None
        parts = iter(match.groups())
        name = ".".join(next(parts) if part == "*" else part for part in change.new.split(".")) + name[match.end() :]
        met.append(change)


@cache
def _pattern(old: str) -> re.Pattern[str]:
    """Return what matches a saved name that is `old`, or begins with it."""
    parts = ("([^.]+)" if part == "*" else re.escape(part) for part in old.split("."))
    return re.compile(r"\.".join(parts) + r"(?=\.|$)")


def _require_open(change: Change, where: Path | None) -> None:
    if change.is_over:
        raise UserInputError(
            f"{where or 'the checkpoint'} has {change.old}, but {change.refusal} Load and save it once with a version "
            f"before {change.remove_in}."
        )


def _tell(change: Change, where: Path | None) -> None:
    tell(change, [Location(file=str(where or "the checkpoint"))], "The next checkpoint has the new name.")


def _same(one: object, other: object) -> bool:
    return type(one) is type(other) and bool(one == other)
