"""The table of recipe keys says what the dataclasses say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from moeframe.config.explain import explain
from moeframe.config.load import load_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def make_keys() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_keys", ROOT / "docs" / "make_keys.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_dataclasses_say(make_keys: ModuleType) -> None:
    written = (ROOT / "docs" / "keys.md").read_text(encoding="utf-8")
    assert written == make_keys.page(), "write it anew: python docs/make_keys.py"


def test_every_key_says_what_it_is(make_keys: ModuleType) -> None:
    rows = re.findall(r"^\| (`.+?`) \|.*\| (.*) \|$", make_keys.page(), re.MULTILINE)
    assert len(rows) > 90
    assert [key for key, description in rows if not description.strip()] == []


def test_it_has_every_key_of_a_shipped_recipe(make_keys: ModuleType) -> None:
    """`explain` finds the keys in another way: in the values of a loaded recipe."""
    listed, section = set(), ""
    for line in make_keys.page().splitlines():
        if heading := re.fullmatch(r"## (\w+)(.*)", line):
            section = heading[1] + "." if not heading[2] else heading[1] + ".options."
        elif row := re.match(r"\| `([\w.]+)` \|", line):
            listed.add(row[1] if section == "Top." or section.startswith("Top") else section + row[1])
    shown, parents = set(), []
    for line in explain(load_recipe(ROOT / "recipes" / "deepseek_v3" / "v2_lite_16b.yaml")).splitlines():
        if key := re.match(r"( *)(\w+):", line):
            parents = [*parents[: len(key[1]) // 2], key[2]]
            shown.add(".".join(parents))
    assert len(shown) > 80
    sections = {path for path in shown if any(other.startswith(f"{path}.") for other in shown)}
    assert shown - sections - listed == set()
