"""Refusals that name the option. Imports neither torch nor numpy."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from moeframe.errors import JobFailedError, Problem, RecipeError, UserInputError

__all__ = ["concerning", "refused", "writing"]

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def refused(option: str, message: str, fix: str) -> RecipeError:
    """Return a refusal of one option of a data set."""
    return RecipeError([Problem(path=f"data.options.{option}", message=message, fix=fix)])


@contextmanager
def concerning(option: str) -> Iterator[None]:
    """Say of any refused input inside that this option gave it."""
    try:
        yield
    except RecipeError:
        raise
    except UserInputError as error:
        raise refused(option, str(error), "") from error


@contextmanager
def writing(place: Path, way_out: str, *, option: str | None = None) -> Iterator[None]:
    """Turn what the operating system says about writing in `place` into an error for people.

    Args:
        place: a file or a folder.
        way_out: what to do instead of making it writable.
        option: of the data set, that gave the place.

    Raises:
        JobFailedError: the disk is full.
        UserInputError: the place cannot be written.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _NO_SPACE:
            raise JobFailedError(f"{place}: writing tokens failed ({reason}). Make room there, or {way_out}") from error
        message, fix = f"{place} cannot be written ({reason}).", f"Make it writable, or {way_out}"
        if option is not None:
            raise refused(option, message, fix) from error
        raise UserInputError(f"{message} {fix}") from error
