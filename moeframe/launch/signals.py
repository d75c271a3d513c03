"""Which signals ask a job to save and end. Importable without torch."""

from __future__ import annotations

import signal

__all__ = ["ending_signals"]


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return Ctrl-C, SIGTERM and, unless this process ignores it as nohup has it do, SIGHUP: the terminal is gone."""
    asked = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        asked.append(signal.SIGHUP)
    return tuple(asked)
