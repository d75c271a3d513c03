"""The page on overlap says what traits, matrix and measurement say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_overlap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_overlap", ROOT / "docs" / "make_overlap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_its_sources_say(make_overlap: ModuleType) -> None:
    written = make_overlap.PAGE.read_text(encoding="utf-8")
    assert written == make_overlap.page(), "write it anew: python docs/make_overlap.py"


def test_a_cell_says_for_which_recompute_it_holds(make_overlap: ModuleType) -> None:
    assert make_overlap._summary({"none": "proved", "full": "proved"}) == "proved"
    assert make_overlap._summary({"none": "proved", "full": "refused", "selective": "proved"}) == (
        "proved with none and selective"
    )
    assert make_overlap._summary({"none": "refused", "full": "refused"}) == "refused"
