from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from moeframe_compat.model.snapshot import from_content
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import compare
from moeframe_compat.rules.base import catalogue, explanations
from moeframe_compat.testing import compare_sources, snapshot_of

CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted(Path(__file__).with_name("cases").glob("*.toml"))
    for case in tomllib.loads(file.read_text(encoding="utf-8"))["case"]
]


def findings(case: dict[str, Any], off: frozenset[str] = frozenset()) -> tuple[set[str], set[str]]:
    """What a case reports: breaking findings, and notes."""
    report = compare_sources(case["before"], case["after"], off=off, ledger=case.get("ledger", ""))
    breaking = {f"{f.rule} {f.symbol}" for f in report.findings if f.breaking}
    return breaking, {f"{f.rule} {f.symbol}" for f in report.findings if not f.breaking}


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_right(case: dict[str, Any]) -> None:
    breaking, notes = findings(case)
    assert set(case["breaks"]) <= breaking
    assert set(case.get("notes", ())) <= notes
    if not case["breaks"] or case.get("only"):
        assert breaking == set(case["breaks"])


@pytest.mark.parametrize("case", [c for c in CASES if c.values[0]["breaks"] or c.values[0].get("notes")])
def test_with_its_rule_off_the_case_fails(case: dict[str, Any]) -> None:
    expected = [*case["breaks"], *case.get("notes", ())]
    off = frozenset(e.split()[0] for e in expected)
    breaking, notes = findings(case, off)
    assert not set(expected) & (breaking | notes)


def test_every_rule_has_a_case_that_fails_without_it() -> None:
    covered = {e.split()[0] for c in CASES for e in (*c.values[0]["breaks"], *c.values[0].get("notes", ()))}
    assert covered == set(catalogue())


def test_every_rule_is_explained() -> None:
    assert set(explanations()) == set(catalogue())
    assert all(set(words) == {"yours", "change", "fix"} for words in explanations().values())


@pytest.mark.parametrize("case", [c for c in CASES if c.values[0]["breaks"]])
def test_every_finding_says_where_why_and_how_to_fix_it(case: dict[str, Any]) -> None:
    for f in compare_sources(case["before"], case["after"], ledger=case.get("ledger", "")).findings:
        assert f.file
        assert f.line >= 1
        assert f.why
        assert f.fix


KEPT = ("arguments", "decorators", "environment", "properties", "reexports", "scripts")
"""Files of cases that do not need the sources of the old release."""


@pytest.mark.parametrize("case", [c for c in CASES if str(c.id).startswith(KEPT) and not c.values[0].get("ledger")])
def test_a_baseline_file_tells_what_its_release_does(case: dict[str, Any]) -> None:
    old = from_content(snapshot_of(case["before"]).content(), "old")
    report = compare(old, snapshot_of(case["after"]), Settings(probe=False), [], [])
    assert {f"{f.rule} {f.symbol}" for f in report.breaking} == findings(case)[0]
