"""The command line. Commands import what they need when they run: `check` and `--help` never import torch."""

from __future__ import annotations

import sys

from moeframe.errors import MoeframeError, RecipeError

__all__ = ["error_text", "main"]


def main() -> None:
    """Run the command that the arguments name, and exit with its code.

    An error that moeframe raises on purpose becomes a message on stderr and its exit code; any other one is a bug and
    shows its traceback.
    """
    from moeframe.cli.app import app

    try:
        app(prog_name="moeframe")
    except MoeframeError as error:
        sys.stderr.write(f"{error_text(error)}\n")
        sys.exit(error.exit_code)


def error_text(error: MoeframeError) -> str:
    """Return what the user reads: one line for each problem."""
    if isinstance(error, RecipeError) and len(error.problems) > 1:
        lines = [f"error: {len(error.problems)} problems"]
        return "\n".join([*lines, *(f"  {problem}" for problem in error.problems)])
    return f"error: {error}"
