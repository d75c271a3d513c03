from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import ModuleType

import griffe
import pytest
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import compare
from moeframe_compat.testing import snapshot_of

ROOT = Path(griffe.__file__).parent
SOURCES = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in sorted(ROOT.rglob("*.py"))}


@pytest.fixture(scope="module")
def refactors() -> ModuleType:
    spec = importlib.util.spec_from_file_location("noop_refactors", Path(__file__).with_name("noop_refactors.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fresh() -> Snapshot:
    return snapshot_of(SOURCES, package="griffe")


def alarms(old: Snapshot, new: Snapshot) -> list[str]:
    return [f"{f.rule} {f.symbol}: {f.why}" for f in compare(old, new, Settings(probe=False), [], []).findings]


def test_a_formatter_run_changes_nothing(refactors: ModuleType) -> None:
    new = snapshot_of({n: refactors.reformatted(t) for n, t in SOURCES.items()}, package="griffe")
    assert alarms(fresh(), new) == []


@pytest.mark.parametrize("start", [0, 1000])
def test_two_hundred_seeded_refactorings_change_nothing(refactors: ModuleType, start: int) -> None:
    texts, rng, used = dict(SOURCES), random.Random(start), set()
    names = [n for n in texts if len(texts[n]) > 200]
    for seed in range(start, start + 200):
        name = rng.choice(names)
        kind, texts[name] = refactors.refactor(texts[name], seed)
        used.add(kind)
    assert len(used) > 8
    assert alarms(fresh(), snapshot_of(texts, package="griffe")) == []


def test_a_rename_among_two_hundred_refactorings_is_found(refactors: ModuleType) -> None:
    texts = {n: refactors.reformatted(t) for n, t in SOURCES.items()}
    name = "_internal/expressions.py"
    assert "def get_expression(node" in texts[name]
    texts[name] = texts[name].replace("def get_expression(node", "def get_expression(tree_node", 1)
    assert any("get_expression(node)" in a for a in alarms(fresh(), snapshot_of(texts, package="griffe")))
