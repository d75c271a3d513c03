"""The ways a check can end without a verdict, with their exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CLEAN, FINDINGS, USAGE, EXTRACTION, STALE = 0, 1, 2, 3, 4
"""Exit codes of every command."""


class CompatError(Exception):
    """Base of the errors that a command turns into one line and an exit code."""

    exit_code = EXTRACTION


class UsageError(CompatError):
    """What was asked for makes no sense: bad SPEC, unknown rule, malformed configuration."""

    exit_code = USAGE


class ExtractionError(CompatError):
    """A release could not be read. It never reads as clean."""

    exit_code = EXTRACTION


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Turn a failure to write a file that the user named into a `UsageError`."""
    try:
        yield
    except OSError as e:
        raise UsageError(f"{target} cannot be written ({e.strerror}); name a file in a writable folder") from e
