"""The plugin that plugins.md writes is as short as the page promises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_LINES = 60


def test_the_plugin_has_at_most_60_lines(blocks_of: Callable[[str], list[Any]]) -> None:
    """Every line that is not blank, of code and of configuration; that it works is in test_pages.py."""
    files = {block.file: block.text for block in blocks_of("docs/plugins.md") if block.file is not None}
    lines = {name: sum(1 for line in text.splitlines() if line.strip()) for name, text in files.items()}
    assert sum(lines.values()) <= MOST_LINES, lines
    assert {Path(name).name for name in files} == {"pyproject.toml", "plugin.py", "dispatcher.py"}


def test_the_page_checks_and_trains_with_it(blocks_of: Callable[[str], list[Any]]) -> None:
    """`test_pages.py` runs these."""
    commands = "".join(block.text for block in blocks_of("docs/plugins.md") if block.language == "console")
    assert "plugins test sumall" in commands
    assert "run recipes/quickstart.yaml dispatcher.name=sumall" in commands
