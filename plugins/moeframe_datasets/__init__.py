"""Data sets: `python_sources` (text that every Python brings along) and `synthetic` (benchmarks)."""
