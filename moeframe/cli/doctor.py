"""`moeframe doctor`: which rank is stuck or failed, where, since when, and the likely cause."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import typer

from moeframe.train.diagnosis import Diagnosis, diagnose

__all__ = ["doctor"]

_EVERY_S: Final = 2.0


def doctor(run_dir: Path, *, follow: bool = False, as_json: bool = False) -> int:
    """Print what a run directory says of its job; 1 when something is wrong, else 0.

    Args:
        run_dir: of a job that runs, or has ended.
        follow: print again whenever something changes, until the job ends or something is wrong.
        as_json: print data, one line each time.

    Raises:
        UserInputError: that is no run directory, or nothing in it can be read.
    """
    shown = ""
    while True:
        found = diagnose(run_dir)
        text = json.dumps(found.as_json()) if as_json else "\n".join([*found.lines, *_notes(found)])
        if text != shown:
            typer.echo(text)
            shown = text
        if not follow or found.status != "running":
            return 1 if found.status == "wrong" else 0
        time.sleep(_EVERY_S)


def _notes(found: Diagnosis) -> list[str]:
    return [f"note: {problem}" for problem in found.problems]
