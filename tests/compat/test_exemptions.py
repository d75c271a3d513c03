"""What is no API is what the old release said so: a change cannot exempt itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_compat.cli import main
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import Report
from moeframe_compat.testing import compare_sources

PLAIN = "__version__ = '0.1'\n"
BEFORE = {"__init__.py": PLAIN, "inner.py": "def f(a): return a\n"}
AFTER = {"__init__.py": PLAIN, "inner.py": "def f(b): return b\n"}
TABLES = {
    "modules_off": "modules_off = ['pkg.inner']",
    "severities": "severities = { PY102 = 'info' }",
    "exclude": "exclude = ['*/inner.py']",
}
SETTINGS = {
    "modules_off": Settings(probe=False, modules_off=["pkg.inner"]),
    "severities": Settings(probe=False, severities={"PY102": "info"}),
    "exclude": Settings(probe=False, exclude=["*/inner.py"]),
}


def saying(files: dict[str, str], line: str) -> dict[str, str]:
    """A release whose own project file holds a line of settings."""
    return {**files, "pyproject.toml": f"[project]\nname = 'pkg'\n[tool.moeframe_compat]\n{line}\n"}


def rules(report: Report) -> list[str]:
    return [f.rule for f in report.breaking]


@pytest.mark.parametrize("key", ["modules_off", "severities"])
def test_a_change_cannot_exempt_itself(key: str) -> None:
    report = compare_sources(BEFORE, saying(AFTER, TABLES[key]), settings=SETTINGS[key])
    assert rules(report) == ["PY102"]
    (note,) = [f for f in report.findings if f.rule == "DP010"]
    assert note.symbol.startswith(f"settings:{key}:")


@pytest.mark.parametrize("key", ["modules_off", "severities"])
def test_what_the_old_release_said_counts_even_when_the_new_one_takes_it_back(key: str) -> None:
    assert rules(compare_sources(saying(BEFORE, TABLES[key]), AFTER)) == []


def test_a_new_marker_exempts_nothing_yet_and_an_old_one_does() -> None:
    marked = "def shaky(f): return f\n@shaky\n"
    before, after = {"__init__.py": marked + BEFORE["inner.py"]}, {"__init__.py": marked + AFTER["inner.py"]}
    line = "markers = ['shaky']"
    assert rules(compare_sources(before, after, settings=Settings(probe=False, markers=["shaky"]))) == ["PY102"]
    assert rules(compare_sources(saying(before, line), after)) == []


def test_new_settings_raise_a_severity_at_once() -> None:
    settings = Settings(probe=False, severities={"PY109": "error"})
    (finding,) = compare_sources("def f(a=1): return a\n", "def f(a=2): return a\n", settings=settings).breaking
    assert finding.severity == "error"


def test_a_new_module_may_be_declared_internal_with_the_release_that_brings_it() -> None:
    report = compare_sources(PLAIN, AFTER, settings=SETTINGS["modules_off"])
    assert report.added == []
    assert not any(f.rule == "DP010" for f in report.findings)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two releases in folders, and settings for the new one that exempt what it changes."""
    for release, files in (("a", BEFORE), ("b", AFTER)):
        for name, text in files.items():
            (tmp_path / release / "pkg").mkdir(parents=True, exist_ok=True)
            (tmp_path / release / "pkg" / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")
    return tmp_path


@pytest.mark.parametrize("key", TABLES)
def test_the_settings_of_the_working_directory_do_not_exempt(project: Path, key: str) -> None:
    table = f"[tool.moeframe_compat]\npackage = 'pkg'\nbaseline = 'dir:a'\n{TABLES[key]}\n"
    (project / "pyproject.toml").write_text(table)
    assert main(["check", "--new", "dir:b"]) == 1
    (project / "a" / "pyproject.toml").write_text(table)
    assert main(["check", "--new", "dir:b"]) == 0


@pytest.mark.parametrize("key", TABLES)
def test_a_baseline_file_records_what_was_no_api(project: Path, key: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.moeframe_compat]\npackage = 'pkg'\n{TABLES[key]}\n")
    assert main(["snapshot", "dir:a", "--output", "recorded.json"]) == 0
    (project / "plain.toml").write_text("package = 'pkg'\n")
    assert main(["snapshot", "dir:a", "--config", "plain.toml", "--output", "plain.json"]) == 0
    assert main(["check", "--old", "snapshot:recorded.json", "--new", "dir:b", "--package", "pkg"]) == 0
    assert main(["check", "--old", "snapshot:plain.json", "--new", "dir:b", "--package", "pkg"]) == 1


def test_a_wheel_brings_its_own_in_a_file_inside_the_package() -> None:
    before = {**BEFORE, "moeframe_compat.toml": "modules_off = ['pkg.inner']\n"}
    assert rules(compare_sources(before, AFTER)) == []


def test_the_text_says_that_a_setting_does_not_count_yet(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = f"[tool.moeframe_compat]\npackage = 'pkg'\nbaseline = 'dir:a'\n{TABLES['modules_off']}\n"
    (project / "pyproject.toml").write_text(table)
    main(["check", "--new", "dir:b"])
    line = "skipped setting modules_off for pkg.inner: the old release's settings count (explain DP010)"
    assert line in capsys.readouterr().out
