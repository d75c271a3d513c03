"""What `check` and `plan` tell of a recipe that fits and gains less than it could."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeframe.cli.check import check
from moeframe.cli.plan import plan
from moeframe.config.compose import Composition, compose
from moeframe.config.load import read_recipe
from moeframe.config.notes import notes
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
OVERLAP = ("schedule.name=overlap_1f1b", "dispatcher.name=alltoall")
ZBV = ("schedule.name=zbv", "parallel.pp=2", "launch.nproc_per_node=2", "model.num_hidden_layers=4")


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOEFRAME_PLUGINS", raising=False)


def composition(*overrides: str) -> Composition:
    """Compose the tiny recipe, whose steps have 16 sequences."""
    return compose(read_recipe(TINY, overrides), Catalog(build_plugin_manager([])))


def test_one_micro_batch_a_step_has_no_partner_to_overlap_with() -> None:
    (note,) = notes(composition(*OVERLAP, "train.micro_batch_size=16"))
    assert note == (
        "schedule 'overlap_1f1b' runs a micro-batch beside the next, and a step has 1: nothing overlaps. "
        "Set train.micro_batch_size=8 or train.global_batch_size=32."
    )


def test_a_dispatcher_that_blocks_hides_nothing() -> None:
    (note,) = notes(composition("schedule.name=overlap_1f1b", "dispatcher.name=local"))
    assert note.startswith("dispatcher 'local' returns when its work is done (trait async_comm is false)")
    assert not [*notes(composition("dispatcher.name=local"))]


def test_fewer_micro_batches_than_stages_do_not_fill_a_pipeline() -> None:
    (note,) = notes(composition(*ZBV, "train.micro_batch_size=8"))
    assert note == (
        "a step's 2 micro-batches and 4 pipeline stages: the pipeline drains before it is full, and its ranks wait for "
        "each other more than they need. Set train.micro_batch_size=4 or train.global_batch_size=32."
    )


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ((*OVERLAP, "train.micro_batch_size=16"), "train.micro_batch_size=8"),
        ((*OVERLAP, "train.micro_batch_size=16"), "train.global_batch_size=32"),
        ((*ZBV, "train.micro_batch_size=8"), "train.micro_batch_size=4"),
        ((*ZBV, "train.micro_batch_size=8"), "train.global_batch_size=32"),
    ],
)
def test_either_way_out_leaves_nothing_to_say(given: tuple[str, ...], instead: str) -> None:
    assert not [*notes(composition(*given, instead))]


def test_check_and_plan_print_them() -> None:
    given = (*OVERLAP, "train.micro_batch_size=16")
    (note,) = notes(composition(*given))
    assert f"  note        {note}" in check(TINY, given, []).splitlines()
    assert f"  note: {note}" in plan(TINY, given, []).splitlines()
    assert json.loads(plan(TINY, given, [], as_json=True))["notes"] == [note]
