from __future__ import annotations

from pathlib import Path

import pytest

from moeframe.config.load import read_recipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.verify import compose_to_prove
from moeframe.verify.engine import plan
from moeframe.verify.reference.plugin import MODULE

QUICKSTART = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"


def composed(*overrides: str):
    loaded = read_recipe(QUICKSTART, overrides)
    catalog = Catalog(build_plugin_manager([MODULE], wanted=loaded.backends))
    return *compose_to_prove(loaded, catalog), catalog


def test_a_recipe_that_fits_is_taken_as_it_is() -> None:
    composition, notes, _ = composed()
    assert composition.recipe.world_size == 2
    assert notes == ()


def test_processes_and_layers_that_do_not_fit_are_found_and_named() -> None:
    composition, notes, catalog = composed("schedule.name=zbv", "parallel.pp=2")
    assert composition.recipe.world_size == 4
    (note,) = notes
    assert "as if it had model.num_hidden_layers=64, launch.nnodes=1, launch.nproc_per_node=4" in note
    assert "parallel.ep: 2 does not divide" in note
    assert plan(composition, catalog).layouts.runs[0].title == "PP 2 x EP 2 (4 processes)"


def test_a_batch_that_does_not_fit_alone_is_all_that_changes() -> None:
    composition, (note,), _ = composed("train.global_batch_size=6")
    assert composition.recipe.world_size == 2
    assert composition.recipe.model.num_hidden_layers == 3
    assert "as if it had train.micro_batch_size=1, train.global_batch_size=2" in note


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (("train.global_batch_size=6", "train.seed=-1"), "train.seed"),
        (("dispatcher.name=local",), "parallel.ep"),
        (("schedule.name=accumulate", "parallel.pp=2", "launch.nproc_per_node=4"), "parallel.pp"),
    ],
)
def test_what_no_other_size_can_mend_stays_refused(overrides: tuple[str, ...], path: str) -> None:
    with pytest.raises(RecipeError) as caught:
        composed(*overrides)
    assert path in {problem.path for problem in caught.value.problems}
