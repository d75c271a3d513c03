"""A covering set of the matrix is proved, its refusals refuse, and a file that is not true any more is found out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError, UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.testing.ranks import RankPool
from moeframe.verify.matrix.cells import Cell, axis_values, key_of, plan_cells
from moeframe.verify.matrix.covering import covering
from moeframe.verify.matrix.page import render
from moeframe.verify.matrix.prove import Prover
from moeframe.verify.matrix.record import Entry, drift, expected, load_entries, load_gpu_entries, save_entries
from moeframe.verify.reference.plugin import MODULE

ROOT = Path(__file__).parents[3]
BASE = ROOT / "recipes" / "quickstart.yaml"
ENTRIES = load_entries(ROOT / "docs" / "matrix.json")
GPU = load_gpu_entries(ROOT / "docs" / "matrix_gpu.json")
PROVED = [entry for entry in ENTRIES if entry.status == "proved" and entry.key not in GPU]
REFUSED = list({entry.reason: entry for entry in ENTRIES if entry.status == "refused"}.values())
"""One for each reason."""


def title(entry: Entry) -> str:
    return "-".join(entry.key)


@pytest.fixture(scope="module")
def prover(ranks: RankPool) -> Prover:
    return Prover(BASE, Catalog(build_plugin_manager((MODULE,))), ranks)


@pytest.mark.parametrize("entry", covering(PROVED), ids=title)
def test_a_covering_set_is_proved(prover: Prover, entry: Entry) -> None:
    proof = prover.prove(entry.overrides)
    assert proof.equal, proof.words


@pytest.mark.parametrize("entry", REFUSED, ids=title)
def test_what_is_refused_is_refused_before_a_process_starts(entry: Entry) -> None:
    loaded = load_recipe(BASE, entry.overrides)
    with pytest.raises(RecipeError):
        compose(loaded, Catalog(build_plugin_manager(wanted=loaded.backends)), device_kind="cpu")


def test_a_composition_that_computes_something_else_is_not_proved(
    ranks: RankPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data" / "plugins"))
    catalog = Catalog(build_plugin_manager((MODULE, "faulty_parts")))
    overrides = ("sharding.name=faulty", "sharding.options.fault=averages")
    proof = Prover(BASE, catalog, ranks, plugins=("faulty_parts",)).prove(overrides)
    assert not proof.equal
    assert proof.words.startswith("EP 2 (2 processes): norm of grad_norm, gradients of embedding.weight, ")
    assert proof.words.endswith(" more differ, at most by 5e-01")


def cell(*key: str, refusal: str = "", lacks_device: bool = False) -> Cell:
    names = zip(("dispatcher.name", "sharding.name", "schedule.name", "train.recompute"), key, strict=True)
    return Cell(key=key, overrides=tuple(f"{k}={v}" for k, v in names), refusal=refusal, lacks_device=lacks_device)


CELLS = [
    cell("a", "x", "s", "none"),
    cell("a", "y", "s", "none", refusal="they do not fit."),
    cell("g", "x", "s", "none", refusal="dispatcher 'g' runs on cuda only.", lacks_device=True),
]
DAY = "2026-01-31"


def entries_of(cells: list[Cell]) -> list[Entry]:
    return [
        expected(one, {}, DAY) or Entry(overrides=one.overrides, status="proved", reason="equal.", date=DAY)
        for one in cells
    ]


TRUE = entries_of(CELLS)


def test_entries_that_are_true_have_no_problems() -> None:
    assert drift(TRUE, CELLS, {}) == []


@pytest.mark.parametrize(
    ("entries", "cells", "problem"),
    [
        (TRUE[1:], CELLS, "a x x x s x none: neither proved nor refused"),
        (TRUE, CELLS[1:], "a x x x s x none: no backends offer it"),
        ([*TRUE, TRUE[0]], CELLS, "a x x x s x none: 2 times"),
        (
            [replace(TRUE[0], status="refused"), *TRUE[1:]],
            CELLS,
            "a x x x s x none: status is 'refused', and must be 'proved'",
        ),
        (
            [TRUE[0], replace(TRUE[1], status="proved"), TRUE[2]],
            CELLS,
            "a x y x s x none: status is 'proved', and must be 'refused'",
        ),
        (
            TRUE,
            [CELLS[0], replace(CELLS[1], refusal="another reason."), CELLS[2]],
            "a x y x s x none: reason is 'they do not fit.', and must be 'another reason.'",
        ),
        (
            TRUE,
            [replace(CELLS[0], overrides=(*CELLS[0].overrides, "parallel.ep=2")), *CELLS[1:]],
            "a x x x s x none: overrides is ",
        ),
    ],
)
def test_each_kind_of_drift_is_found(entries: list[Entry], cells: list[Cell], problem: str) -> None:
    (found,) = drift(entries, cells, {})
    assert found.startswith(problem)


def test_results_of_gpus_count_where_no_cpu_can_run(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    proof = {"overrides": CELLS[2].overrides, "status": "proved", "reason": "equal.", "date": DAY}
    file.write_text(json.dumps([{**proof, "machine": "2 x H200"}]))
    gpu = load_gpu_entries(file)
    told = expected(CELLS[2], gpu, "2027-01-01")
    assert told is not None
    assert (told.status, told.reason, told.date) == ("proved", "On 2 x H200: equal.", DAY)
    assert drift([*TRUE[:2], told], CELLS, gpu) == []
    stale = drift([*TRUE[:2], told], CELLS, {})
    assert "g x x x s x none: status is 'proved', and must be 'refused'" in stale
    able = [*CELLS[:2], replace(CELLS[2], refusal="", lacks_device=False)]
    assert any("a CPU can prove or refuse it" in one for one in drift([*TRUE[:2], told], able, gpu))
    assert load_gpu_entries(tmp_path / "none.json") == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "it must be a list of objects"),
        ("[", "It must be a list of objects"),
        ('[{"overrides": []}]', "an entry has date, overrides, reason, status"),
        (
            '[{"overrides": [], "status": "proved", "reason": "r", "date": "2026-01-31"}]',
            "dispatcher.name must be given",
        ),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "matrix.json"
    file.write_text(text)
    with pytest.raises(UserInputError, match=words):
        load_entries(file)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"status": "fine"}, "legal are proved, refused"),
        ({"reason": ""}, "a reason must be given"),
        ({"date": "yesterday"}, "Invalid isoformat"),
        ({"machine": " "}, "Say what it ran on"),
    ],
)
def test_a_wrong_entry_is_refused(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    file = tmp_path / "gpu.json"
    good = {"status": "proved", "reason": "r", "date": DAY, "machine": "2 x H200"}
    file.write_text(json.dumps([{"overrides": CELLS[2].overrides, **good, **changed}]))
    with pytest.raises(UserInputError, match=words):
        load_gpu_entries(file)


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    save_entries(tmp_path / "m.json", TRUE)
    assert load_entries(tmp_path / "m.json") == TRUE


def test_a_page_shows_every_cell_and_each_reason_once() -> None:
    more = [cell("a", "y", "s", "full"), cell("a", "x", "s", "full"), cell("g", "x", "s", "full", refusal="no.")]
    others = [cell("g", "y", "s", mode, refusal="they do not fit.") for mode in ("none", "full")]
    text = render(entries_of([*CELLS, *more, *others]), "r.yaml")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert rows == [
        "| `x` | proved |",
        "| `y` | none: refused [1], full: proved |",
        "| `x` | none: refused [2], full: refused [3] |",
        "| `y` | refused [1] |",
    ]
    assert "1. they do not fit.\n2. dispatcher 'g' runs on cuda only.\n3. no.\n" in text
    assert "8 combinations of dispatcher, sharding, schedule and recompute: 3 proved (2026-01-31),\n5 refused" in text


def pairs(keys: list[tuple[str, ...]]) -> Iterator[object]:
    for key in keys:
        yield from combinations(enumerate(key), 2)


def test_a_covering_set_has_every_pair_and_is_small() -> None:
    cells = [cell(a, b, c, d) for a in "123" for b in "1234" for c in "1234567" for d in "123"]
    chosen = covering(cells)
    assert set(pairs([one.key for one in chosen])) == set(pairs([one.key for one in cells]))
    assert len(chosen) <= 32
    assert covering(cells) == chosen


def test_cells_are_the_combinations_of_what_moeframe_offers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data" / "plugins"))
    catalog = Catalog(build_plugin_manager(["elsewhere_only"], listing=True, environment={}))
    axes = axis_values(catalog)
    assert "elsewhere" not in axes["dispatcher"]
    assert axes["recompute"] == ["none", "full", "selective"]
    assert {"local", "allgather", "alltoall"} <= set(axes["dispatcher"])
    cells = plan_cells(load_recipe(BASE), catalog)
    assert len(cells) == len({one.key for one in cells})
    assert {tuple(one.key) for one in cells} == {key_of(one.overrides) for one in cells}
    by_key = {one.key: one for one in cells}
    split = by_key["alltoall", "fsdp2", "zbv", "none"]
    assert not split.refusal
    assert "sharding.options.reshard_after_forward=false" in split.overrides
    assert {"parallel.pp=2", "parallel.ep=2", "launch.nproc_per_node=4"} <= set(split.overrides)
