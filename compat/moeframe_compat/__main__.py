"""`python -m moeframe_compat`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from moeframe_compat.cli import main


def run() -> None:
    """Run a command and end the process at once: Python would first take two releases apart, object by object."""
    code = main()
    with suppress(OSError):  # `main` has told of it
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
