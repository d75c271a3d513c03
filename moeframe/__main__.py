"""`python -m moeframe` is the command `moeframe`."""

from __future__ import annotations

from moeframe.cli import main

if __name__ == "__main__":
    main()
