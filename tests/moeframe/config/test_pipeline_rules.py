"""Pipelines that cannot run are refused while the recipe is read, with the numbers that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.load import read_recipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"


def composed(*overrides: str) -> Composition:
    loaded = read_recipe(TINY, overrides)
    return compose(loaded, Catalog(build_plugin_manager(wanted=loaded.backends)))


def refusal(*overrides: str) -> str:
    """The only problem of the tiny recipe with 30 layers on two processes."""
    with pytest.raises(RecipeError) as caught:
        composed("model.num_hidden_layers=30", "launch.nproc_per_node=2", *overrides)
    assert len(caught.value.problems) == 1, caught.value
    return str(caught.value)


def test_too_few_micro_batches_are_refused_with_the_sizes_that_give_enough_c48() -> None:
    text = refusal("parallel.pp=2", "schedule.name=1f1b", "train.micro_batch_size=16")
    assert "train.micro_batch_size: given 16, which makes 1 micro-batch a step" in text
    assert "it needs as many micro-batches as pipeline ranks (2) or more. Legal near 1: 2, 3, 4, 5." in text
    assert "Use train.micro_batch_size=1, 2, 4 or 8; or train.global_batch_size=32; or schedule.name=" in text


def test_a_batch_that_no_micro_batch_size_makes_legal_says_so() -> None:
    text = refusal("parallel.pp=2", "schedule.name=dualpipev", "train.global_batch_size=2", "train.micro_batch_size=1")
    assert "it needs as many micro-batches as stages (4) or more" in text
    assert "Use train.global_batch_size=4; or schedule.name=1f1b, gpipe," in text


def test_a_batch_that_micro_batches_do_not_divide_is_refused_with_the_divisors_c49() -> None:
    text = refusal("parallel.pp=2", "schedule.name=gpipe", "train.global_batch_size=8", "train.micro_batch_size=3")
    assert "Legal: 1, 2, 4, 8." in text


def test_rounds_that_are_not_equally_long_are_refused() -> None:
    text = refusal("parallel.pp=2", "schedule.name=interleaved_1f1b", "train.global_batch_size=40")
    assert "Legal near 5: 1, 2, 3, 4, 6, 8, 10, 12." in text
    assert "Use train.micro_batch_size=1, 2, 4, 5, 10, 20 or 40; or train.global_batch_size=48; " in text


def test_a_pipeline_of_one_rank_is_refused() -> None:
    text = refusal("schedule.name=zbv")
    assert "parallel.pp: given 1; schedule 'zbv' runs on 2 pipeline ranks or more." in text


def test_a_pipeline_without_a_schedule_for_it_is_refused() -> None:
    assert "schedule 'accumulate' runs one stage, without a pipeline" in refusal("parallel.pp=2")


@pytest.mark.parametrize(
    ("layers", "fix"),
    [(3, "Use model.num_hidden_layers=4 or more"), (5, "Use model.num_hidden_layers=8 or more; or parallel.pp=2;")],
)
def test_more_stages_than_layers_are_refused(layers: int, fix: str) -> None:
    pp = 2 if layers == 3 else 4
    with pytest.raises(RecipeError) as caught:
        composed(
            f"model.num_hidden_layers={layers}",
            f"launch.nproc_per_node={pp}",
            f"parallel.pp={pp}",
            "schedule.name=zbv",
        )
    assert f"that makes {2 * pp} stages, and the model has {layers} layers (model.num_hidden_layers). {fix}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[8,8,7,7]", "it lists 4 stage(s), and there are 2 (pp 2 x 1 stage a rank of schedule '1f1b')"),
        ("[14,14]", "it adds up to 28 layer(s), and the model has 30"),
        ("[30,0]", "stage 1 would hold 0 layer(s)"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_both_numbers_c53(given: str, message: str) -> None:
    text = refusal(
        "parallel.pp=2", "schedule.name=1f1b", "train.micro_batch_size=4", f"parallel.layers_per_stage={given}"
    )
    assert message in text
    assert "Use parallel.layers_per_stage=null, which is [15,15];" in text


def test_one_stage_must_hold_all_layers_c51() -> None:
    assert "it adds up to 1 layer(s), and the model has 30" in refusal("parallel.layers_per_stage=[1]")


def test_the_layout_follows_an_override_c53() -> None:
    wide = ("parallel.pp=16", "schedule.name=interleaved_1f1b", "schedule.options.stages_per_rank=1")
    small = ("launch.nproc_per_node=16", "launch.nnodes=1", "model.num_hidden_layers=61", "train.micro_batch_size=1")
    assert composed(*small, *wide).num_stages == 16
    assert composed(*small, *wide, "parallel.pp=8").num_stages == 8


@pytest.mark.parametrize("schedule", ["zero_bubble", "zbv", "dualpipev"])
def test_a_split_backward_needs_parameters_that_stay_whole(schedule: str) -> None:
    two = ("parallel.pp=2", f"schedule.name={schedule}", "train.micro_batch_size=4", "sharding.name=fsdp2")
    text = refusal(*two)
    assert "'fsdp2' frees gathered parameters after the forward" in text
    assert f"schedule {schedule!r} computes weight gradients later" in text
    assert "Use sharding.options.reshard_after_forward=false; or sharding.name=replicate or zero1; or schedule." in text
    kept = composed(
        "model.num_hidden_layers=30", "launch.nproc_per_node=2", *two, "sharding.options.reshard_after_forward=false"
    )
    assert kept.schedule.traits.splits_backward
    partly = refusal(
        *two, "sharding.options.reshard_after_forward=false", "sharding.options.reshard_experts_after_forward=true"
    )
    assert "'fsdp2' frees gathered parameters" in partly
    assert "Use sharding.options.reshard_experts_after_forward=false; or sharding.name=" in partly


def test_a_recipe_names_1f1b_as_it_is_called() -> None:
    assert read_recipe(TINY, ["schedule.name=1f1b"]).recipe.schedule.name == "1f1b"
