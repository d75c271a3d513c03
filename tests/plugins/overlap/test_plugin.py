from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_overlap.options import OverlapOptions
from moeframe_overlap.plan import plan
from moeframe_overlap.plugin import moeframe_offer_schedules

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.errors import ContractError, RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.precision import Precision
from moeframe.schedule.simulate import simulate


def test_forwards_run_ahead_of_backwards_by_one() -> None:
    assert str(plan(1, 3)) == "rank 0: 0F0 0F1 0B0 0F2 0B1 0B2"
    for number in (1, 2, 5):
        simulated = simulate(plan(1, number))
        assert simulated.bubble == 0
        assert simulated.peak_live == (min(2, number),)


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(ContractError, match="one stage, not 2"):
        plan(2, 4)


def test_the_offer_says_what_the_schedule_needs_of_others() -> None:
    (offer,) = moeframe_offer_schedules()
    traits = offer.traits(OverlapOptions(), Precision.of("bfloat16"))
    assert traits.runs_phases
    assert traits.splits_backward
    assert not traits.pipelines
    assert all(offer.legal_micro_batches(OverlapOptions(), 1, number) is None for number in (1, 2, 5))


RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


def composed(*overrides: str) -> object:
    loaded = load_recipe(RECIPE, overrides)
    return compose(loaded, Catalog(build_plugin_manager(wanted=loaded.backends)))


def test_one_queue_for_two_streams_is_refused_where_there_may_be_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    with pytest.raises(RecipeError, match="CUDA_DEVICE_MAX_CONNECTIONS=1 in the environment"):
        composed("schedule.name=overlap_1f1b")
    assert composed("schedule.name=overlap_1f1b", "launch.device=cpu")
    assert composed("schedule.name=accumulate")
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")
    assert composed("schedule.name=overlap_1f1b")


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(RecipeError) as caught:
        composed(
            "schedule.name=overlap_1f1b",
            "sharding.options.reshard_after_forward=true",
            "train.recompute=full",
            "parallel.pp=2",
            "parallel.ep=1",
        )
    paths = [problem.path for problem in caught.value.problems]
    assert sorted(paths) == ["parallel.pp", "sharding.name", "train.recompute"]


def test_a_pipeline_is_refused_before_the_start_with_the_schedules_that_run_it() -> None:
    with pytest.raises(RecipeError) as caught:
        composed("schedule.name=overlap_1f1b", "parallel.pp=2", "parallel.ep=1", "dispatcher.name=local")
    (problem,) = caught.value.problems
    assert problem.path == "parallel.pp"
    assert problem.message == (
        "given 2; schedule 'overlap_1f1b' runs one stage, without a pipeline: it runs the phases of a whole model, and "
        "a stage is a part of one."
    )
    assert problem.fix.startswith("Use parallel.pp=1; or schedule.name=1f1b")
    assert composed("schedule.name=1f1b", "parallel.pp=2", "parallel.ep=1", "dispatcher.name=local")
