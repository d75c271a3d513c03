"""The command line. Commands import what they need when they run: `check` and `--help` never import torch."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Final, TextIO

from moeframe.errors import MoeframeDeprecationWarning, MoeframeError, RecipeError

__all__ = ["error_text", "main", "with_resume_value"]

_YAML: Final = (".yaml", ".yml")


def main() -> None:
    """Run the command that the arguments name, and exit with its code.

    An error that moeframe raises on purpose becomes a message on stderr and its exit code; any other one is a bug and
    shows its traceback. Old names are warned of in a line each, or refused with ``python -W error``.
    """
    from moeframe.cli.app import app

    _show_deprecations()
    try:
        app(args=with_resume_value(sys.argv[1:]), prog_name="moeframe")
    except MoeframeDeprecationWarning as refused:
        sys.stderr.write(f"error: {refused}\n")
        sys.exit(2)
    except MoeframeError as error:
        sys.stderr.write(f"{error_text(error)}\n")
        sys.exit(error.exit_code)


def _show_deprecations() -> None:
    """Print warnings of old names as messages; `python -W` and PYTHONWARNINGS decide whether they come at all."""
    if not sys.warnoptions:
        warnings.simplefilter("always", MoeframeDeprecationWarning)
    others = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, MoeframeDeprecationWarning):
            sys.stderr.write(f"warning: {message}\n")
        else:
            others(message, category, filename, lineno, file, line)

    warnings.showwarning = show


def with_resume_value(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with `latest` behind a `--resume` that names no run directory.

    What follows belongs to something else when it is an option, an override (``key=value``) or a recipe file.
    """
    found: list[str] = []
    for number, argument in enumerate(arguments):
        found.append(argument)
        following = arguments[number + 1] if number + 1 < len(arguments) else "-"
        if argument == "--resume" and (following.startswith("-") or "=" in following or following.endswith(_YAML)):
            found.append("latest")
    return found


def error_text(error: MoeframeError) -> str:
    """Return what the user reads: one line for each problem."""
    if isinstance(error, RecipeError) and len(error.problems) > 1:
        lines = [f"error: {len(error.problems)} problems"]
        return "\n".join([*lines, *(f"  {problem}" for problem in error.problems)])
    return f"error: {error}"
