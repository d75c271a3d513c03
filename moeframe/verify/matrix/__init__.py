"""Every dispatcher with every sharding, schedule and recompute: planned, proved, kept in a file, shown on a page."""

from __future__ import annotations
