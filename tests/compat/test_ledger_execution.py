from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_compat.policy.ledger import parse_ledger
from moeframe_compat.policy.settings import Settings
from moeframe_compat.probe.ledger import Execution
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
    settings = Settings(loader=[f"{package}:resolve"], root=folder)
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
    settings = Settings(loader=["no_such_module:resolve"], root=tmp_path)
    report = compare_sources(BEFORE, AFTER.replace("{migrate}", "pass"), ledger=LEDGER, settings=settings)
    assert [f.rule for f in report.breaking] == ["CF002"]
    assert "the loader cannot be run: ModuleNotFoundError" in report.skipped[0]


CALLED = """
import warnings, torch
@torch.no_grad()
def route(x, *, use=None, enable="absent"):
    {shim}
    return use
"""
SHIM = """if enable != "absent":
        warnings.warn("enable is now use", DeprecationWarning)
        if use is not None and use != enable: raise TypeError("both")
        use = enable
"""
PARAMETER = LEDGER.replace("'config'", "'python'").replace("'enable'", "'f(enable)'").replace("'use'", "'f(use)'")
CALLER = """
import sys
def call(name, arguments):
    import {package}
    return [name, {package}.route(1, **arguments)]
"""


def call_check(folder: Path, shim: str, name: str) -> Report:
    package = f"called_{name}"
    (folder / f"{package}.py").write_text(CALLED.replace("{shim}", shim.strip()))
    (folder / "trials.py").write_text(CALLER.replace("{package}", package))
    settings = Settings(caller=["trials.py:call"], root=folder)
    before = "__version__ = '0.1'\ndef f(x, *, enable=None): return enable\n"
    after = "__version__ = '0.2'\ndef f(x, *, use=None, enable='absent'): return use or enable\n"
    return compare_sources(before, after, ledger=PARAMETER, settings=settings)


def test_a_declared_parameter_is_called_by_both_names_with_torch_stubbed(tmp_path: Path) -> None:
    report = call_check(tmp_path, SHIM, "good")
    assert (report.breaking, report.unrun, report.exit_code) == ([], [], 0)


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [
        ("inert", ("        use = enable\n", ""), "DP005"),
        ("falsy", ("use = enable", "use = enable or use"), "DP004"),
        ("silent", ('warnings.warn("enable is now use", DeprecationWarning)', "pass"), "DP006"),
        ("both", ('raise TypeError("both")', "pass"), "DP007"),
    ],
)
def test_a_declared_parameter_that_does_not_work_is_named(
    tmp_path: Path, name: str, change: tuple[str, str], rule: str
) -> None:
    report = call_check(tmp_path, SHIM.replace(*change), name)
    assert rule in {finding.rule for finding in report.breaking}


def test_a_ledger_that_cannot_be_run_is_not_clean(tmp_path: Path) -> None:
    (tmp_path / "trials.py").write_text("def call(name, arguments): raise LookupError(name)\n")
    settings = Settings(caller=["trials.py:call"], root=tmp_path)
    same = "__version__ = '0.2'\ndef f(x, *, use=None, enable=None): return use\n"
    report = compare_sources(same, same, ledger=PARAMETER, settings=settings)
    assert (report.breaking, report.exit_code) == ([], 3)
    assert "LookupError: f" in report.skipped[0]


WAYS = """
import warnings
def renamed(given, known=("enable",)):
    given = dict(given)
    for name in known:
        if name in given:
            warnings.warn(f"{name} is now use", DeprecationWarning)
            if "use" in given and given["use"] != given[name]: raise TypeError("both")
            given["use"] = given.pop(name)
    if set(given) - {"use"}: raise KeyError("unknown")
    return given
def from_file(config): return renamed(config)
def from_override(config): return renamed(config, known=())
def restore(saved): return renamed({k.removeprefix("layers.0."): v for k, v in saved.items()})
def command(name, options): return [name, renamed({k.lstrip("-"): v for k, v in options.items()})]
"""


def verdict(folder: Path, ledger: str, **runners: list[str]) -> Report:
    (folder / "ways.py").write_text(WAYS)
    same = (
        "from dataclasses import dataclass\n__version__ = '0.2'\n@dataclass\nclass RunConfig:\n    use: bool = True\n"
    )
    same += "import argparse\np = argparse.ArgumentParser()\np.add_argument('--use')\n"
    return compare_sources(same, same, ledger=ledger, settings=Settings(root=folder, **runners))


def test_a_way_that_lacks_the_old_name_is_a_surface_without_the_alias(tmp_path: Path) -> None:
    report = verdict(tmp_path, LEDGER, loader=["ways.py:from_file", "ways.py:from_override"])
    (finding,) = report.breaking
    assert finding.rule == "DP008"
    assert "from_override lacks the old name, from_file has it" in finding.why


NAMES = LEDGER.replace("'config'", "'checkpoint'").replace("'enable'", "'layers.*.enable'")
NAMES = NAMES.replace("'use'", "'layers.*.use'")
OPTION = (
    LEDGER.replace("'config'", "'cli'").replace("'enable'", "'prog run --enable'").replace("'use'", "'prog run --use'")
)


@pytest.mark.parametrize(
    ("ledger", "runner"), [(NAMES, {"restorer": ["ways.py:restore"]}), (OPTION, {"runner": ["ways.py:command"]})]
)
def test_saved_names_and_options_are_run_too(tmp_path: Path, ledger: str, runner: dict[str, list[str]]) -> None:
    good = verdict(tmp_path, ledger, **runner)
    assert (good.breaking, good.unrun, [s for s in good.skipped if "ledger" in s or "rename" in s]) == ([], [], [])
    other = verdict(tmp_path, ledger, caller=["ways.py:command"])
    assert len(other.unrun) == 1
    assert next(iter(runner)) in next(s for s in other.skipped if "in the settings runs it" in s)


def test_verdicts_are_kept_until_something_changes_that_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", str(tmp_path.with_name("kept")))
    (tmp_path / "table.txt").write_text("enable")
    (tmp_path / "inner.py").write_text(WAYS)
    text = "from pathlib import Path\nfrom inner import renamed\n"
    text += "def load(given): return renamed(given, [Path(__file__).with_name('table.txt').read_text()])\n"
    (tmp_path / "way.py").write_text(text)
    (entry,) = parse_ledger(LEDGER, "changes.toml")
    settings = Settings(root=tmp_path, loader=["way.py:load"])

    def look() -> tuple[bool, str]:
        with Execution([entry], settings) as running:
            return running.process is not None, running.verdicts()[entry.label()].rule

    assert look() == (True, "")
    assert look() == (False, "")
    (tmp_path / "table.txt").write_text("something else")
    assert look() == (True, "DP001")
    (tmp_path / "table.txt").write_text("enable")
    assert look() == (True, "")
    (tmp_path / "inner.py").write_text(WAYS.replace("enable", "on"))
    (tmp_path / "table.txt").write_text("on")
    assert look() == (True, "DP001")
