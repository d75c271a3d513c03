"""Progress of a long preparation, on stderr."""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

__all__ = ["Meter"]

_QUIET_S: Final = 1.0
"""What is done sooner shows nothing."""
_EVERY_LIVE_S: Final = 0.2
_EVERY_LOG_S: Final = 10.0


def _clock(seconds: float) -> str:
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


class Meter:
    """One live line on a terminal, a line every 10 s elsewhere; nothing in the first second.

    Args:
        title: what is being done.
        total: bytes in all.
        stream: where to write; None: stderr.
        shown: false: write nothing.
    """

    def __init__(self, title: str, total: int, *, stream: TextIO | None = None, shown: bool = True) -> None:
        self._title = title
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._shown = shown
        self._live = self._stream.isatty()
        self._started = time.monotonic()
        self._due = self._started + _QUIET_S
        self._width = 0

    def advance(self, done: int) -> None:
        """Show that `done` bytes of all are through, when it is time to."""
        now = time.monotonic()
        if not self._shown or now < self._due:
            return
        self._due = now + (_EVERY_LIVE_S if self._live else _EVERY_LOG_S)
        self._write(self.line(done, now - self._started))

    def line(self, done: int, seconds: float) -> str:
        """Return the line: share, size, speed, time left."""
        share = min(1.0, done / self._total) if self._total else 1.0
        left = _clock(seconds * (1 - share) / share) if share else "?"
        speed = done / seconds / 1e6 if seconds else 0.0
        return f"{self._title}: {share:.0%} of {self._total / 1e6:,.1f} MB, {speed:,.1f} MB/s, ETA {left}"

    def say(self, text: str) -> None:
        """Write a line of its own."""
        if self._shown:
            self.close()
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def close(self) -> None:
        """End the live line."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()
            self._width = 0

    def _write(self, line: str) -> None:
        if self._live:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(f"{line}\n")
        self._stream.flush()
