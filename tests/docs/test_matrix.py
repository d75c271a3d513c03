"""The matrix of proofs speaks of what is offered now: nothing untested, no refusal that is none, no stale page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from moeframe.verify.matrix.record import drift, load_entries, load_gpu_entries

ROOT = Path(__file__).parents[2]
ANEW = "write it anew: nox -s matrix -- --missing"


@pytest.fixture(scope="module")
def make_matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_matrix", ROOT / "docs" / "make_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_combination_is_proved_or_refused_with_the_reason_of_today(make_matrix: ModuleType) -> None:
    problems = drift(load_entries(make_matrix.MATRIX), make_matrix.planned(), load_gpu_entries(make_matrix.GPU))
    assert problems == [], ANEW


def test_the_page_is_what_the_file_says(make_matrix: ModuleType) -> None:
    assert make_matrix.PAGE.read_text(encoding="utf-8") == make_matrix.page(), ANEW


def test_the_file_holds_objects_of_four_fields(make_matrix: ModuleType) -> None:
    entries = json.loads(make_matrix.MATRIX.read_text(encoding="utf-8"))
    assert all(list(entry) == ["overrides", "status", "reason", "date"] for entry in entries)
    assert {entry["status"] for entry in entries} <= {"proved", "refused"}
