from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import Report
from moeframe_compat.testing import compare_sources

BEFORE = """
from dataclasses import dataclass
__version__ = "0.1"
@dataclass
class RunConfig:
    enable: bool | None = True
def resolve(raw): return RunConfig(**raw)
"""
AFTER = """
import tomllib, warnings, pathlib
from dataclasses import dataclass
__version__ = "0.2"
@dataclass
class RunConfig:
    use: bool | None = True
def resolve(raw):
    raw = dict(raw)
    for entry in tomllib.loads(pathlib.Path(__file__).with_name("changes.toml").read_text())["rename"]:
        {migrate}
    return RunConfig(**raw)
"""
GOOD = """
        if entry["old"] in raw:
            warnings.warn(f"{entry['old']} is now {entry['new']}", DeprecationWarning)
            if entry["new"] in raw and raw[entry["new"]] != raw[entry["old"]]: raise TypeError("both")
            raw[entry["new"]] = raw.pop(entry["old"])
"""
LEDGER = "[[rename]]\nsurface = 'config'\nold = 'enable'\nnew = 'use'\nsince = '0.2'\nremove_in = '0.4'\n"


def run(folder: Path, migrate: str, name: str) -> Report:
    package = f"ledger_{name}"
    (folder / package).mkdir()
    after = AFTER.replace("{migrate}", migrate.strip())
    (folder / package / "__init__.py").write_text(after)
    (folder / package / "changes.toml").write_text(LEDGER)
    settings = Settings(loader=f"{package}:resolve", root=folder)
    return compare_sources(BEFORE, after, ledger=LEDGER, settings=settings)


def test_a_declared_rename_that_works_is_no_break(tmp_path: Path) -> None:
    report = run(tmp_path, GOOD, "good")
    assert report.breaking == []
    assert report.skipped == []


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("refused", (GOOD, "pass"), "DP001"),
        (
            "falsy",
            ('if entry["old"] in raw:', 'if raw.get(entry["old"]) or (raw.pop(entry["old"], None) and 0):'),
            "DP004",
        ),
        ("inert", ('raw[entry["new"]] = raw.pop', "raw.pop"), "DP004"),
        ("inverted", ('= raw.pop(entry["old"])', '= not raw.pop(entry["old"])'), "DP004"),
        ("silent", ("warnings.warn(", "str("), "DP006"),
        ("both", ('raise TypeError("both")', "pass"), "DP007"),
    ],
)
def test_a_declared_rename_that_does_not_work_is_named(
    tmp_path: Path, name: str, change: tuple[str, str], rule: str
) -> None:
    text = GOOD.replace(*change).replace(", DeprecationWarning", "") if name == "silent" else GOOD.replace(*change)
    rules = {f.rule for f in run(tmp_path, text, name).breaking}
    assert rule in rules
    assert rules <= {rule, "DP005"}


def test_a_loader_that_cannot_be_run_leaves_the_break_and_says_so(tmp_path: Path) -> None:
    settings = Settings(loader="no_such_module:resolve", root=tmp_path)
    report = compare_sources(BEFORE, AFTER.replace("{migrate}", "pass"), ledger=LEDGER, settings=settings)
    assert [f.rule for f in report.breaking] == ["CF002"]
    assert "the loader cannot be run: ModuleNotFoundError" in report.skipped[0]
