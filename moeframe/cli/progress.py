"""One live line on a terminal, for commands that take a while."""

from __future__ import annotations

import time
from typing import Final, TextIO

__all__ = ["ProgressLine"]


class ProgressLine:
    """Says what a command does now: one live line on a terminal, elsewhere a line for each job, or nothing."""

    def __init__(self, stream: TextIO, *, terminal_only: bool = False) -> None:
        """Show nothing yet; with `terminal_only` there is nothing to see in files and pipes."""
        self._stream: Final = stream
        self._live = stream.isatty()
        self._silent = terminal_only and not self._live
        self._started = time.monotonic()
        self._width = 0

    def show(self, what: str) -> None:
        """Say what runs now; ``{time}`` in it stands for the time since the start."""
        if self._silent:
            return
        text = what.replace("{time}", f"{time.monotonic() - self._started:.0f} s")
        if self._live:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = max(self._width, len(text))
        else:
            self._stream.write(f"{text}\n")
        self._stream.flush()

    def clear(self) -> None:
        """Leave an empty line to write on."""
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
