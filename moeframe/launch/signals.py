"""Which signals ask a job to save and end. Importable without torch."""

from __future__ import annotations

import signal
from typing import Final

__all__ = ["ENDING", "ending_signals"]

ENDING: Final = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Where ranks received different ones, the first of these is what ended the job."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return Ctrl-C, SIGTERM and, unless this process ignores it as nohup has it do, SIGHUP: the terminal is gone."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in ENDING if not (ignored and number is signal.SIGHUP))
