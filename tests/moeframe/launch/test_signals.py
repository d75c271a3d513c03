from __future__ import annotations

import signal

from moeframe.launch.signals import ending_signals


def test_a_closed_terminal_ends_a_job_unless_nohup_says_otherwise() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert set(ending_signals()) == {signal.SIGINT, signal.SIGTERM}
    finally:
        signal.signal(signal.SIGHUP, before)
