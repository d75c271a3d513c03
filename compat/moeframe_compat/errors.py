"""The ways a check can end without a verdict, with their exit codes."""

from __future__ import annotations

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
