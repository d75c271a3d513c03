"""Packages that come with the one under test: what they offer counts, how they are made does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_compat.cli import main
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import check, write_snapshot

OPTIONS = (
    "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass RingOptions:\n    chunks: int | None = None\n"
)
PLUGIN = """
from pkg import Offer
from pkg_ring.options import RingOptions
def build(options): return options
def offers(): return [Offer(name="ring", options=RingOptions, build=build)]
"""
SETTINGS = Settings(package="pkg", companions=["pkg_ring", "pkg_absent"], probe=False)


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for release in ("old", "new"):
        write(
            tmp_path / release / "pkg" / "__init__.py",
            "class Offer:\n    def __init__(self, name, options, build): pass\n",
        )
        write(tmp_path / release / "plugins" / "pkg_ring" / "__init__.py", "")
        write(tmp_path / release / "plugins" / "pkg_ring" / "options.py", OPTIONS)
        write(tmp_path / release / "plugins" / "pkg_ring" / "plugin.py", PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(old: str = "dir:old") -> list[str]:
    return [f"{f.rule} {f.symbol}" for f in check(old, "dir:new", settings=SETTINGS).breaking]


@pytest.mark.parametrize(
    ("file", "old", "new", "finding"),
    [
        ("plugin.py", '"ring"', '"loop"', "PL001 plugin-name:ring"),
        ("options.py", "chunks", "pieces", "CF002 pkg_ring.options.RingOptions.chunks"),
        ("options.py", "int | None = None", "int = 1", "CF004 pkg_ring.options.RingOptions.chunks"),
        ("options.py", "= None", "= 4", "CF007 pkg_ring.options.RingOptions.chunks"),
    ],
)
def test_what_recipes_name_is_checked(releases: Path, file: str, old: str, new: str, finding: str) -> None:
    path = releases / "new" / "plugins" / "pkg_ring" / file
    path.write_text(path.read_text().replace(old, new))
    assert finding in found()
    write_snapshot("dir:old", "pkg", releases / "old.json", SETTINGS)
    assert finding in found("snapshot:old.json")


def test_how_it_is_made_is_not(releases: Path) -> None:
    ring = releases / "new" / "plugins" / "pkg_ring"
    (ring / "options.py").unlink()
    write(ring / "inner" / "__init__.py", OPTIONS.replace("RingOptions", "Options") + "    fresh: int = 1\n")
    text = PLUGIN.replace("pkg_ring.options import RingOptions", "pkg_ring.inner import Options")
    write(
        ring / "plugin.py", text.replace("RingOptions", "Options").replace("build", "make").replace("make=", "build=")
    )
    assert found() == []


def test_a_package_that_only_the_new_release_has_breaks_nothing(releases: Path) -> None:
    (releases / "new" / "plugins" / "pkg_ring").rename(releases / "new" / "plugins" / "pkg_absent")
    (releases / "old" / "plugins" / "pkg_ring" / "plugin.py").write_text("")
    assert found() == []


def test_the_settings_name_them(releases: Path) -> None:
    write(
        releases / "pyproject.toml",
        "[tool.moeframe_compat]\npackage = 'pkg'\nbaseline = 'dir:old'\ncompanions = ['pkg_ring']\n",
    )
    path = releases / "new" / "plugins" / "pkg_ring" / "plugin.py"
    path.write_text(path.read_text().replace('"ring"', '"loop"'))
    assert main(["check", "--new", "dir:new"]) == 1
