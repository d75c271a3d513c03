"""What a person sees while a job runs. Importable without torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

__all__ = ["Progress", "duration", "left_out"]

_SILENT_S = 30.0
"""Where few steps get a line, one that ends as long after the last line gets one too."""


def duration(seconds: float) -> str:
    """Return seconds as ``m:ss`` or ``h:mm:ss``."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def left_out(metrics: Mapping[str, Any]) -> str | None:
    """Return what is said of a step that was left out, which has no losses; None for any other step."""
    if metrics["loss"] is None or metrics["ce_loss"] is None:
        return f"left out: not finite ({metrics['skipped_steps']} so far)"
    return None


def _losses(metrics: Mapping[str, Any]) -> str:
    """Return the losses; a step that was left out has none."""
    return left_out(metrics) or f"loss {metrics['loss']:.3f}  ce {metrics['ce_loss']:.3f}"


class Progress:
    """One live line on a terminal; elsewhere a line at the first step, about twenty more, the last, and each 30 s.

    The time left follows the steps of this process, the first one (which warms up) left out.
    """

    def __init__(self, steps: int, *, first_step: int = 0, stream: TextIO | None = None) -> None:
        """Start at `first_step` of `steps`."""
        self._steps = steps
        self._first = first_step
        self._stream = sys.stdout if stream is None else stream
        self._live = self._stream.isatty()
        self._every = max(1, (steps - first_step) // 20)
        self._started = time.monotonic()
        self._warm: float | None = None
        self._width = 0
        self._told = self._started

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Show step number `step`, counted from 1."""
        now = time.monotonic()
        if self._warm is None:
            self._warm, left = now, ""
        else:
            done = step - self._first - 1
            left = f"  ETA {duration((now - self._warm) / done * (self._steps - step))}"
        line = (
            f"step {step}/{self._steps}  {_losses(metrics)}  "
            f"{metrics['tokens_per_second']:,.0f} tok/s  load max/mean {1 + metrics['max_violation']:.2f}  "
            f"dead {metrics['dead_experts']}{left}"
        )
        if self._live:
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        elif self._is_told(step, now):
            self._stream.write(line + "\n")
            self._told = now
        self._stream.flush()

    def _is_told(self, step: int, now: float) -> bool:
        """Whether a step gets a line where no live line is shown."""
        done = step - self._first
        return done == 1 or step == self._steps or done % self._every == 0 or now - self._told >= _SILENT_S

    def say(self, text: str) -> None:
        """Print a line of its own."""
        if self._live and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._width = 0
        self._stream.write(text + "\n")
        self._stream.flush()

    def close(self) -> float:
        """End the live line and return the seconds since the start."""
        if self._live and self._width:
            self._stream.write("\n")
        self._stream.flush()
        return time.monotonic() - self._started
