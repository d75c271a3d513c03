from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.verify.engine import plan
from moeframe.verify.layouts import Layouts, plan_layouts
from moeframe.verify.shrink import reference_of, shrink

RECIPES = Path(__file__).parents[3] / "recipes"
NOT_ON_A_CPU = ("deepseek_v3/megatron_fsdp_2gpu.yaml",)
"""Recipes whose parts no CPU runs: there is nothing to shrink to."""
FILES = sorted({file.relative_to(RECIPES).as_posix() for file in RECIPES.rglob("*.yaml")} - {*NOT_ON_A_CPU})

Composed = Callable[..., tuple[Composition, Catalog]]


@pytest.fixture
def layouts(composed: Composed) -> Callable[..., Layouts]:
    def layouts(*overrides: str, **more: Any) -> Layouts:
        composition, _ = composed(*overrides, **more)
        return plan_layouts(composition, shrink(composition))

    return layouts


def shapes(found: Layouts) -> dict[str, tuple[int, int]]:
    """Return processes and micro-batches by title."""
    return {layout.title: (layout.degrees.world, layout.num_micro_batches) for layout in found.runs}


@pytest.mark.parametrize("file", FILES)
def test_every_recipe_shrinks_to_one_of_its_kind(composed: Composed, file: str) -> None:
    composition, _ = composed(recipe=RECIPES / file, base=())
    big, small = composition.recipe.model, shrink(composition).model
    assert not small.problems()
    for name in ("n_group", "topk_group", "num_experts_per_tok", "n_routed_experts"):
        assert (getattr(small, name) > 1) == (getattr(big, name) > 1), name
    for name in ("n_shared_experts", "first_k_dense_replace", "num_nextn_predict_layers", "aux_loss_alpha"):
        assert (getattr(small, name) > 0) == (getattr(big, name) > 0), name
    assert (small.q_lora_rank is None) == (big.q_lora_rank is None)
    assert (small.rope_scaling, small.scoring_func, small.topk_method) == (
        big.rope_scaling,
        big.scoring_func,
        big.topk_method,
    )


@pytest.mark.parametrize("file", NOT_ON_A_CPU)
def test_a_recipe_for_gpus_only_is_refused_with_the_reason(composed: Composed, file: str) -> None:
    with pytest.raises(RecipeError, match="cannot be used here: the module megatron_fsdp is not installed"):
        composed(recipe=RECIPES / file, base=())


@pytest.mark.parametrize("file", FILES)
def test_every_recipe_has_a_reference_and_layouts_that_compose(composed: Composed, file: str) -> None:
    composition, catalog = composed(recipe=RECIPES / file, base=())
    planned = plan(composition, catalog)
    compose(LoadedRecipe.of(planned.reference), catalog, device_kind="cpu")
    assert any(layout.own for layout in planned.layouts.runs)
    assert {layout.recipe.train.precision for layout in planned.layouts.runs} == {"float64"}
    assert max(layout.degrees.world for layout in planned.layouts.runs) <= 4


def test_small_weights_and_speeds_are_raised_and_zeros_stay(composed: Composed) -> None:
    composition, _ = composed()
    model = shrink(composition).model
    assert model.aux_loss_alpha >= 0.01
    assert model.bias_update_speed >= 0.01
    composition, _ = composed("model.aux_loss_alpha=0", "model.bias_update_speed=0")
    model = shrink(composition).model
    assert model.aux_loss_alpha == model.bias_update_speed == 0


def test_options_recompute_and_clipping_stay_and_the_reference_has_none(composed: Composed) -> None:
    options = ("train.recompute=full", "dispatcher.options.check_splits=true", "optimizer.clip_grad_norm=null")
    composition, _ = composed(*options)
    small = shrink(composition)
    assert small.train.recompute == "full"
    assert small.dispatcher.options == {"check_splits": True}
    assert small.optimizer.clip_grad_norm is None
    assert reference_of(small, 8).train.recompute == "none"


def test_ep_2_has_its_own_shape_first_and_the_others_around_it(layouts: Callable[..., Layouts]) -> None:
    found = layouts()
    assert shapes(found) == {
        "EP 2 (2 processes)": (2, 2),
        "one process": (1, 4),
        "DP 2 (2 processes)": (2, 2),
        "EP 4 (4 processes)": (4, 2),
        "EP 2 x expert-data 2 (4 processes)": (4, 2),
    }
    assert found.runs[0].own


def test_a_dispatcher_for_one_rank_gets_no_ep(layouts: Callable[..., Layouts]) -> None:
    assert list(shapes(layouts(base=("launch.device=cpu",)))) == ["one process", "DP 2 (2 processes)"]


def test_a_pipeline_is_in_every_layout_of_its_schedule(layouts: Callable[..., Layouts]) -> None:
    found = layouts("schedule.name=1f1b", "parallel.pp=2", "launch.nproc_per_node=4", "train.micro_batch_size=1")
    assert list(shapes(found)) == ["PP 2 x EP 2 (4 processes)", "PP 2 (2 processes)", "PP 2 x DP 2 (4 processes)"]


def test_replicas_are_in_every_layout_of_a_hybrid_sharding(layouts: Callable[..., Layouts]) -> None:
    found = layouts(
        "sharding.name=hsdp", "parallel.dp_replicate=2", "launch.nproc_per_node=4", "train.micro_batch_size=2"
    )
    assert list(shapes(found)) == [
        "EP 2 x replicas 2 (4 processes)",
        "replicas 2 (2 processes)",
        "DP 2 x replicas 2 (4 processes)",
    ]


def test_a_shape_of_three_axes_is_proved_in_pairs_and_says_so(layouts: Callable[..., Layouts]) -> None:
    found = layouts(
        "schedule.name=gpipe", "parallel.pp=2", "launch.nproc_per_node=8", "train.micro_batch_size=1"
    )  # pp 2 x edp 2 x ep 2
    assert not any(layout.own for layout in found.runs)
    assert "edp_shard x ep x pp) needs more than 4 processes" in found.notes[0]


def test_micro_batches_are_as_the_schedule_wants_them(layouts: Callable[..., Layouts]) -> None:
    found = layouts(
        "schedule.name=dualpipev",
        "parallel.pp=2",
        "launch.nproc_per_node=4",
        "train.micro_batch_size=1",
        "model.num_hidden_layers=4",
    )
    assert all(layout.num_micro_batches >= 4 for layout in found.runs)


def test_given_layers_of_stages_stay_uneven(composed: Composed) -> None:
    composition, _ = composed(
        "schedule.name=1f1b",
        "parallel.pp=2",
        "parallel.layers_per_stage=[1, 2]",
        "launch.nproc_per_node=4",
        "train.micro_batch_size=1",
    )
    small = shrink(composition)
    assert small.parallel.layers_per_stage == (1, 2)
    assert small.model.num_hidden_layers == 3
