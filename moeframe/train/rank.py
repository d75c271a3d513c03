"""One rank that `moeframe run` started: ``python -m moeframe.train.rank RUN_DIR STEP [PLUGIN ...]``."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Train and return the exit code.

    Importing torch takes seconds. Until training listens to signals, Ctrl-C ends the rank as SIGTERM does: at once, and
    without a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from moeframe.train.worker import main as work

    return work(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
