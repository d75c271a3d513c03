"""Data sets: `python_sources`, `text`, `token_file`, and `synthetic` (benchmarks)."""
