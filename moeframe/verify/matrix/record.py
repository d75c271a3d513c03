"""The matrix as a file: one object for each cell; and whether such a file still tells the truth. Needs no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, get_args

from moeframe.errors import UserInputError
from moeframe.verify.matrix.cells import Cell, Key, key_of

__all__ = ["Entry", "drift", "expected", "load_entries", "load_gpu_entries", "save_entries"]

Status = Literal["proved", "refused"]

_FIELDS: Final = {"overrides", "status", "reason", "date"}
_MACHINE: Final = "machine"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a cell.

    `overrides`: over the base recipe, for `moeframe verify` and `check`. `reason`: how it was proved, or why it is
    refused. `date`: ISO 8601, of the proof, or of when the refusal was first seen.
    """

    overrides: tuple[str, ...]
    status: Status
    reason: str
    date: str

    @property
    def key(self) -> Key:
        """Its values on the axes of the matrix."""
        return key_of(self.overrides)


def load_entries(file: Path) -> list[Entry]:
    """Return what a file holds; nothing when there is none.

    Raises:
        UserInputError: it is not a list of such objects.
    """
    return [_entry(one, file, _FIELDS) for one in _objects(file)]


def load_gpu_entries(file: Path) -> dict[Key, Entry]:
    """Return what was proved on GPUs, by cell; nothing when there is no file.

    Its objects have one more field, `machine`: what it ran on, such as ``2 x NVIDIA H200, torch 2.11.0``. The reason of
    an entry names it.

    Raises:
        UserInputError: it is not a list of such objects.
    """
    found = {}
    for one in _objects(file):
        machine = str(one.get(_MACHINE) or "").strip() if isinstance(one, dict) else ""
        entry = _entry(one, file, {*_FIELDS, _MACHINE})
        if not machine:
            raise UserInputError(f"{file}: {' '.join(entry.overrides)}: machine is empty. Say what it ran on.")
        found[entry.key] = replace(entry, reason=f"On {machine}: {entry.reason}")
    return found


def save_entries(file: Path, entries: Iterable[Entry]) -> None:
    """Write a file, in the order given."""
    lines = ",\n".join(json.dumps(asdict(one), ensure_ascii=False) for one in entries)
    file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def expected(cell: Cell, gpu: Mapping[Key, Entry], today: str) -> Entry | None:
    """Return the entry of a cell that needs no run here: proved on GPUs, or refused. None: it is to be proved."""
    if not cell.refusal:
        return None
    if cell.lacks_device and cell.key in gpu:
        return gpu[cell.key]
    return Entry(overrides=cell.overrides, status="refused", reason=cell.refusal, date=today)


def drift(entries: Sequence[Entry], cells: Sequence[Cell], gpu: Mapping[Key, Entry]) -> list[str]:
    """Return what makes entries untrue: cells without one, entries without a cell, other overrides, other reasons."""
    found = {entry.key: entry for entry in entries}
    problems = [f"{' x '.join(key)}: {n} times" for key, n in Counter(one.key for one in entries).items() if n > 1]
    problems += [f"{' x '.join(key)}: no backends offer it" for key in found.keys() - {cell.key for cell in cells}]
    problems += [
        f"{cell.title}: proved on a GPU in the file of GPU results, but a CPU can prove or refuse it"
        for cell in cells
        if cell.key in gpu and not cell.lacks_device
    ]
    for cell in cells:
        here = found.get(cell.key)
        if here is None:
            problems.append(f"{cell.title}: neither proved nor refused")
            continue
        wanted = expected(cell, gpu, here.date)
        if wanted is None:
            wanted = replace(here, overrides=cell.overrides, status="proved")
        problems += [
            f"{cell.title}: {name} is {getattr(here, name)!r}, and must be {getattr(wanted, name)!r}"
            for name in ("overrides", "status", "reason", "date")
            if getattr(here, name) != getattr(wanted, name)
        ]
    return problems


def _objects(file: Path) -> list[Any]:
    if not file.exists():
        return []
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise UserInputError(f"{file}: {error}. It must be a list of objects.") from error
    if not isinstance(found, list):
        raise UserInputError(f"{file}: it must be a list of objects.")
    return found


def _entry(one: Any, file: Path, names: set[str]) -> Entry:
    if not isinstance(one, dict) or one.keys() != names:
        given = ", ".join(one) if isinstance(one, dict) else repr(one)
        raise UserInputError(f"{file}: given {given}; an entry has {', '.join(sorted(names))}.")
    entry = Entry(overrides=tuple(one["overrides"]), status=one["status"], reason=one["reason"], date=one["date"])
    try:
        key_of(entry.overrides)
        date.fromisoformat(entry.date)
    except ValueError as error:
        raise UserInputError(f"{file}: {error}.") from error
    if entry.status not in get_args(Status) or not entry.reason:
        raise UserInputError(
            f"{file}: {' '.join(entry.overrides)}: status is {entry.status!r}, legal are "
            f"{', '.join(get_args(Status))}; a reason must be given."
        )
    return entry
