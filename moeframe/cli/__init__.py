"""The command line. Commands import what they need when they run: `check` and `--help` never import torch."""

from __future__ import annotations

import errno
import logging
import re
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from moeframe.errors import MoeframeDeprecationWarning, MoeframeError, RecipeError, UserInputError
from moeframe.launch.output import lasting_output

__all__ = ["error_text", "main", "with_resume_value"]

_YAML: Final = (".yaml", ".yml")
_DASHED: Final = re.compile(r"--?[A-Za-z_]\w*(\.\w+)+=")


def main() -> None:
    """Run the command that the arguments name, and exit with its code.

    An error that moeframe raises on purpose becomes a message on stderr and its exit code; any other one is a bug and
    shows its traceback. Old names are warned of in a line each, or refused with ``python -W error``. A command whose
    output could not be written is no success, unless its reader had enough (`head`).
    """
    with lasting_output() as output:
        code = _run(sys.argv[1:])
    if code == 0 and output is not None and output.error is not None and output.error.errno != errno.EPIPE:
        if sys.stderr is not None:
            told = f"standard output cannot be written: {output.error.strerror}. Nothing else failed."
            sys.stderr.write(f"error: {told}\n")
        code = 1
    sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit code."""
    _show_deprecations()
    _show_warnings()
    try:
        from moeframe.cli.app import app

        _require_plain_overrides(arguments)
        _require_working_directory()
        app(args=with_resume_value(arguments), prog_name="moeframe")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except MoeframeDeprecationWarning as refused:
        sys.stderr.write(f"error: {refused}\n")
        return 2
    except MoeframeError as error:
        from moeframe.cli.wrapping import clipped, for_reader

        sys.stderr.write(f"{for_reader(clipped(error_text(error)), sys.stderr)}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0


def _require_plain_overrides(arguments: Sequence[str]) -> None:
    """Refuse ``--train.steps=5``, of which a parser of options can say only that it is none.

    Raises:
        UserInputError: an argument is an override with dashes before it.
    """
    for argument in arguments:
        if argument == "--":
            return
        if _DASHED.match(argument):
            plain = argument.lstrip("-")
            raise UserInputError(f"{argument}: an override has no dashes before it. Write {plain}.")


def _require_working_directory() -> None:
    """Refuse to work where nothing relative can be named.

    Raises:
        UserInputError: the working directory was removed.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UserInputError(
            f"the working directory cannot be used: {error.strerror}. Change to one that is there."
        ) from error


def _show_warnings() -> None:
    """Print what is logged as a warning with that word before it, where no handler is installed."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_Levels())


class _Levels(logging.Formatter):
    """Puts the level before a message, as errors have it."""

    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


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

    What follows belongs to something else when it is an option, an override (``key=value``) or a recipe file. Behind
    ``--`` nothing is an option.
    """
    found: list[str] = []
    for number, argument in enumerate(arguments):
        if argument == "--":
            return [*found, *arguments[number:]]
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
