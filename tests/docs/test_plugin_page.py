"""The plugin that plugins.md writes is as short as the page promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_LINES = 60


def test_the_plugin_has_at_most_60_lines(blocks_of: Callable[[str], list[Any]]) -> None:
    """Every line that is not blank, of code and of configuration; that it works is in test_pages.py."""
    files = {block.file: block.text for block in blocks_of("docs/plugins.md") if block.file is not None}
    tests = [name for name in files if name.rpartition("/")[2].startswith("test_")]
    lines = {name: sum(1 for line in text.splitlines() if line.strip()) for name, text in files.items()}
    assert len(tests) == 1
    assert sum(count for name, count in lines.items() if name not in tests) <= MOST_LINES, lines
    assert {name.rpartition(".")[2] for name in files} >= {"toml", "py"}
