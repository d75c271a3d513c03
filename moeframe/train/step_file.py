"""Files of a run that hold one JSON object a line, each with its `step`. Importable without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeframe.errors import UserInputError

__all__ = ["StepFile", "read_last_step", "read_steps"]


class StepFile:
    """Appends lines, whole ones only, in the order of their steps."""

    def __init__(self, path: Path, *, keep_steps: int = 0) -> None:
        """Append to `path`, which keeps its first `keep_steps` steps: later ones are about to be trained again.

        Raises:
            UserInputError: a line of `path` is damaged; the file stays as it is.
        """
        if path.exists():
            part = path.with_name(f".{path.name}.part")
            with part.open("w", encoding="utf-8") as kept:
                lines = enumerate(_whole_lines(path), 1)
                kept.writelines(line for number, line in lines if _step_of(line, path, number) <= keep_steps)
            part.replace(path)
        self._file = path.open("a", encoding="utf-8")

    def write(self, line: Mapping[str, Any]) -> None:
        """Write one line, compact, and hand it to the system.

        Raises:
            ValueError: a number is NaN or infinite, which JSON does not have; nothing is written.
        """
        self._file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_steps(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a file, none if it does not exist; one that is still being written is left out."""
    if path.exists():
        yield from (json.loads(line) for line in _whole_lines(path))


def read_last_step(path: Path) -> dict[str, Any] | None:
    """Return the last whole line, None if there is none."""
    last = None
    if path.exists():
        for line in _whole_lines(path):
            last = line
    return None if last is None else dict(json.loads(last))


def _step_of(line: str, path: Path, number: int) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserInputError(
            f"{path}:{number}: this line is no JSON object with a step ({error}); every line of the file must be one. "
            f"Repair or delete the line, then resume again."
        ) from error


def _whole_lines(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as file:
        yield from (line for line in file if line.endswith("\n"))
