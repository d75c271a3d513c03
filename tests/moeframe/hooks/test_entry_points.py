from __future__ import annotations

import functools
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from moeframe.hooks import entry_points
from moeframe.hooks.entry_points import Origin, find_entry_points, locate_module


def test_entry_points_come_by_distribution_and_name_with_their_versions(site) -> None:
    site.distribution("moeframe-b", "2.0", {"two": "b.two", "one": "b.one"}, {})
    site.distribution("moeframe-a", "1.0", {"zed": "a"}, {})
    assert [found.origin for found in find_entry_points()] == [
        Origin(plugin="zed", target="a", distribution="moeframe-a", version="1.0"),
        Origin(plugin="one", target="b.one", distribution="moeframe-b", version="2.0"),
        Origin(plugin="two", target="b.two", distribution="moeframe-b", version="2.0"),
    ]


def test_a_distribution_of_another_group_is_no_plugin(site) -> None:
    site.metadata("other", "1.0", "")
    (site.folder / "other-1.0.dist-info" / "entry_points.txt").write_text("[console_scripts]\nx = y:z\n")
    assert find_entry_points() == []


def test_a_malformed_line_of_one_distribution_hides_no_other(site) -> None:
    site.metadata("moeframe-bad", "0.1", "a line without an equals sign\n")
    site.distribution("moeframe-good", "1.0", {"good": "good"}, {})
    bad, good = find_entry_points()
    assert good.origin.plugin == "good"
    assert bad.error is not None
    assert (bad.origin.distribution, bad.origin.version) == ("moeframe-bad", "0.1")


def test_a_shadowed_distribution_does_not_count(site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.distribution("moeframe-a", "1.0", {"old": "a"}, {})
    first = tmp_path / "first"
    first.mkdir()
    monkeypatch.syspath_prepend(str(first))
    paths = [str(first), str(site.folder)]
    monkeypatch.setattr(entry_points, "distributions", functools.partial(distributions, path=paths))
    type(site)(first).distribution("moeframe-a", "2.0", {"new": "a"}, {})
    assert [found.origin.plugin for found in find_entry_points()] == ["new"]


def test_a_folder_that_stands_twice_on_the_path_counts_once(site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.distribution("moeframe-a", "1.0", {"one": "a"}, {})
    paths = [str(site.folder)] * 2
    monkeypatch.setattr(entry_points, "distributions", functools.partial(distributions, path=paths))
    assert [found.origin.plugin for found in find_entry_points()] == ["one"]


def test_locating_a_module_runs_nothing_of_its_packages(site) -> None:
    site.module("pack.inner.plugin", "raise RuntimeError")
    site.module("pack.__init__", "raise RuntimeError")
    spec = locate_module("pack.inner.plugin")
    assert spec is not None
    assert spec.origin == str(site.folder / "pack" / "inner" / "plugin.py")
    assert "pack" not in sys.modules


@pytest.mark.parametrize("name", ["no_such_top", "pack.no_such", "pack.plain.below", "__main__.x"])
def test_a_module_that_is_not_there_is_not_located(site, name: str) -> None:
    site.module("pack.plain", "")
    assert locate_module(name) is None


def test_an_origin_says_where_a_plugin_comes_from() -> None:
    installed = Origin(plugin="ring", target="m.plugin", distribution="moeframe-ring", version="0.3")
    assert str(installed) == "plugin 'ring' (moeframe-ring 0.3, entry point ring = m.plugin)"
    assert str(Origin(plugin="mine", target="mine")) == "plugin 'mine' (module mine)"
    assert str(Origin(plugin="Mine")) == "plugin 'Mine' (object)"
