from __future__ import annotations

import pytest

from moeframe.config.compose import compose
from moeframe.config.explain import explain
from moeframe.config.load import LoadedRecipe, load_recipe
from moeframe.errors import UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

REAL = """\
dispatcher: {name: alltoall, options: {validate: true}}
sharding: {name: fsdp2}
schedule: {name: accumulate}
compute: {name: torch}
data: {name: python_sources}
"""


def composed(loaded: LoadedRecipe):
    return compose(loaded, Catalog(build_plugin_manager(wanted=loaded.backends)))


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Return key -> (value, story) of an explanation of one key or section."""
    found = {}
    for line in text.splitlines():
        left, _, story = line.partition("  # ")
        key, _, value = left.partition(": ")
        found[key] = (value.strip(), story)
    return found


def test_every_value_has_its_story(recipes) -> None:
    loaded = recipes.load(REAL + "train: {seed: '${train.steps}', eval_every: 5}", "train.steps=50")
    composition = composed(loaded)
    shown = rows(explain(loaded, composition, "train"))
    expected = {
        "train.steps": ("50", "override train.steps=50"),
        "train.seq_len": ("32", "base.yaml:26:29"),
        "train.global_batch_size": ("8", "base.yaml:26:52"),
        "train.micro_batch_size": ("2", "base.yaml:26:73"),
        "train.seed": ("50", "r.yaml:7:15 = ${train.steps}"),
        "train.precision": ("float32", "default"),
        "train.eval_every": ("5", "r.yaml:7:45"),
        "train.eval_sequences": ("64", "default"),
        "train.output_dir": ("runs", "default"),
        "train.micro_batches_per_step": (
            "4",
            "derived: global_batch_size 8 / data_ranks 1 / micro_batch_size 2",
        ),
        "train.tokens_per_step": ("256", "derived: global_batch_size 8 x seq_len 32"),
    }
    assert {key: shown[key] for key in expected} == expected
    assert all(story for _, story in shown.values())


def test_derived_degrees_follow_an_override(recipes) -> None:
    loaded = recipes.load(REAL, "launch.nproc_per_node=4", "parallel.ep=2", "train.micro_batch_size=1")
    shown = rows(explain(loaded, composed(loaded), "parallel"))
    assert shown["parallel.world_size"] == ("4", "derived: launch.nnodes 1 x launch.nproc_per_node 4")
    assert shown["parallel.dp_shard"] == ("4", "derived: data_ranks 4 / dp_replicate 1")
    assert shown["parallel.edp"] == ("2", "derived: data_ranks 4 / ep 2")


def test_one_key_is_one_line(recipes) -> None:
    loaded = recipes.load(REAL)
    assert explain(loaded, composed(loaded), "dispatcher.options.check_splits") == (
        "dispatcher.options.check_splits: false  # default of dispatcher 'alltoall'"
    )
    assert explain(loaded, None, "dispatcher.options") == "dispatcher.options.validate: true  # r.yaml:2:50"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("train.stpes", "Did you mean 'train.steps'?"),
        ("edp", "Did you mean 'parallel.edp'?"),
        ("train.lr", "Did you mean 'optimizer.lr'?"),
        ("parallel.world", "Did you mean 'parallel.world_size'?"),
        ("qqqq", "Leave the key away to see them all."),
    ],
)
def test_a_key_that_does_not_exist_suggests_one(recipes, key, hint) -> None:
    loaded = recipes.load(REAL)
    with pytest.raises(UserInputError) as caught:
        explain(loaded, composed(loaded), key)
    assert str(caught.value) == f"the recipe has no key {key!r}. {hint}"


def test_the_whole_explanation_is_an_equal_recipe(recipes) -> None:
    loaded = recipes.load(REAL + "optimizer: {betas: [0.8, 0.9]}", "train.eval_every=0")
    composition = composed(loaded)
    text = explain(loaded, composition)
    assert text.splitlines()[0] == "# r.yaml over base.yaml with train.eval_every=0"
    again = load_recipe(recipes.write(text, "again.yaml"))
    assert composed(again).dispatcher == composition.dispatcher
    assert again.recipe.train == loaded.recipe.train
    assert again.recipe.model == loaded.recipe.model
    assert again.recipe.optimizer == loaded.recipe.optimizer


def test_without_a_composition_the_values_are_still_explained(recipes) -> None:
    loaded = recipes.load("")
    text = explain(loaded)
    assert "derived" not in text
    assert load_recipe(recipes.write(text, "again.yaml")).recipe == loaded.recipe


def test_what_has_no_effect_is_a_comment_that_names_the_switch(recipes) -> None:
    loaded = recipes.load("train: {eval_every: 5, eval_sequences: 8}", "train.eval_every=0")
    (line,) = [line for line in explain(loaded).splitlines() if "eval_sequences" in line]
    assert line.strip().startswith("# eval_sequences: 64")
    assert line.endswith("# default (r.yaml:2:40 gave 8, without effect since override train.eval_every=0)")


def test_a_recipe_made_in_python_has_values_without_places(recipes) -> None:
    loaded = LoadedRecipe.of(recipes.load("").recipe)
    assert explain(loaded).splitlines()[0] == "# a recipe made in Python"
    assert "train.steps: 10" in explain(loaded, None, "train.steps")
