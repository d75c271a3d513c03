"""`moeframe doctor`: which rank is stuck or failed, where, since when, and the likely cause."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Final

import typer

from moeframe.errors import UserInputError
from moeframe.train.diagnosis import Diagnosis, diagnose
from moeframe.train.run_directory import why_no_run

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
    if why := why_no_run(run_dir):
        raise UserInputError(
            f"{run_dir} is no run directory: {why}. Name one, such as runs/<recipe name>/<time>-<id>{_newest()}."
        )
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


def _newest() -> str:
    """Return where the newest run below the working directory is, as the end of a sentence."""
    runs = [path.parent for path in Path("runs").glob("*/*/recipe.yaml")]
    return f"; the newest here: {max(runs, key=lambda run: run.name)}" if runs else ""


def _notes(found: Diagnosis) -> list[str]:
    return [f"note: {problem}" for problem in found.problems]
