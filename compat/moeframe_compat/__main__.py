"""`python -m moeframe_compat`."""

from __future__ import annotations

import sys

from moeframe_compat.cli import main

sys.exit(main())
