from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from moeframe_compat.render import FORMATS
from moeframe_compat.report import check

CORPUS = Path(__file__).parent.parent / "data" / "compat_corpus"


@pytest.fixture(scope="module")
def score() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compat_corpus_score", CORPUS / "score.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def results(score: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOEFRAME_COMPAT_CACHE", "off")
        for case in json.loads((CORPUS / "cases.json").read_text(encoding="utf-8")):
            folder = CORPUS / f"{case['id']}-{case['name']}"
            report = check(f"dir:{folder / 'before'}", f"dir:{folder / 'after'}", package="pkg")
            out.append(score.judge(case, json.loads(FORMATS["json"](report))["findings"], None))
    return out


def missed(results: list[dict[str, Any]], severity: str) -> list[str]:
    return [r["name"] for r in results if r["severity"] == severity and r["verdict"] != "TP"]


def test_hard_breaks_are_found(results: list[dict[str, Any]]) -> None:
    assert len(missed(results, "hard")) <= 2, missed(results, "hard")


@pytest.mark.parametrize("severity", ["silent", "typing"])
def test_silent_and_typing_breaks_are_found(results: list[dict[str, Any]], severity: str) -> None:
    assert missed(results, severity) == []


def test_compatible_changes_raise_at_most_one_alarm_and_no_working_shim_does(results: list[dict[str, Any]]) -> None:
    alarms = [r["name"] for r in results if r["verdict"] == "FP"]
    assert len(alarms) <= 1, alarms
    shims = [c["name"] for c in json.loads((CORPUS / "cases.json").read_text()) if c["shim"] and not c["breaking"]]
    assert not set(alarms) & set(shims)


def test_broken_shims_are_named_as_such(results: list[dict[str, Any]]) -> None:
    for case in json.loads((CORPUS / "cases.json").read_text()):
        if case["shim"] and case["breaking"]:
            (result,) = (r for r in results if r["id"] == case["id"])
            assert {f["rule"] for f in result["findings"]} & {"DP004", "DP005"}, case["name"]
