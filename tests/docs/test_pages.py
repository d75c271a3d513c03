"""Every block of every page does what the page says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
TOP = (
    "python -m pip install -c constraints.txt -e . -e ./compat && moeframe run recipes/quickstart.yaml\n",
    "python -m pip install nox && nox -s tests\n",
)
"""The two commands that README.md opens with. CI runs them as they stand, so they do not run here."""
MOST_NOT_RUN = 8


@pytest.mark.parametrize("page", PAGES)
def test_every_block_does_what_the_page_says(page: str, workspace: Any, blocks_of: Callable[[str], list[Any]]) -> None:
    previous = None
    for block in blocks_of(page):
        output = block.language == "text" and previous is not None and previous.language == "console"
        if not (output or (page == "README.md" and block.text in TOP)):
            workspace.run(block)
        previous = block


def test_the_readme_opens_with_the_two_commands(blocks_of: Callable[[str], list[Any]]) -> None:
    consoles = [block.text for block in blocks_of("README.md") if block.language == "console"]
    assert tuple(consoles[:2]) == TOP
    assert TOP[1] in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_few_blocks_are_not_run_and_each_says_why(blocks_of: Callable[[str], list[Any]]) -> None:
    skipped = [f"{block.place}: {block.not_run}" for page in PAGES for block in blocks_of(page) if block.not_run]
    assert len(skipped) <= MOST_NOT_RUN, "\n".join(skipped)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    source = re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)]+)\)", source):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = ((ROOT / page).parent / path) if path else ROOT / page
        assert file.exists(), f"{page}: {target} leads nowhere"
        if heading:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
            assert heading in anchors, f"{page}: {target}: no such heading among {sorted(anchors)}"


def test_docs_readme_lists_every_page() -> None:
    listed = set(re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "README.md").read_text(encoding="utf-8")))
    assert listed == {Path(page).name for page in PAGES if page.startswith("docs/")} - {"README.md"}
