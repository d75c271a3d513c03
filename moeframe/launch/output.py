"""Standard output that cannot be written ends no command: a job goes on when its terminal or log has gone.

Importable without torch.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

__all__ = ["Lost", "lasting_output"]


class Lost(io.FileIO):
    """A file that keeps its first error and drops what it cannot write. `error` is None while all went well."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write; what fails counts as written."""
        try:
            return super().write(data) or 0
        except OSError as error:
            self.error = self.error or error
            return memoryview(data).nbytes


@contextmanager
def lasting_output() -> Iterator[Lost | None]:
    """Keep `sys.stdout` and `sys.stderr` usable whatever becomes of them; yield what stdout goes through.

    Yields None, and leaves the stream alone, where stdout is not the process's own (a test, a notebook).
    """
    _open_standard_files()
    before = sys.stdout, sys.stderr
    stdout, stderr = _guarded(sys.stdout, 1), _guarded(sys.stderr, 2)
    sys.stdout, sys.stderr = stdout or sys.stdout, stderr or sys.stderr
    try:
        yield None if stdout is None else stdout.buffer.raw  # type: ignore[attr-defined]
    finally:
        for stream in (stdout, stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def _guarded(stream: TextIO | None, descriptor: int) -> io.TextIOWrapper | None:
    """Return a text stream on the same descriptor that raises no OSError.

    For a stream that the caller has closed, one that drops what is written.
    """
    if stream is None:
        return io.TextIOWrapper(io.BufferedWriter(Lost(descriptor, "wb", closefd=False)), encoding="utf-8")
    try:
        if not isinstance(stream, io.TextIOWrapper) or stream.fileno() != descriptor:
            return None
    except io.UnsupportedOperation:  # a buffer in memory
        return None
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(Lost(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering or stream.write_through,
    )


def _open_standard_files() -> None:
    """Open what the caller has closed (``>&-``), so that no file of the job is taken for a standard one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
