from __future__ import annotations

from dataclasses import replace

import pytest

from moeframe.config.load import dump_recipe, load_recipe, recipe_hash


def test_c91_a_dumped_recipe_loads_as_an_equal_one_with_an_equal_hash(recipes, base) -> None:
    text = """\
name: "no"
model: {rope_scaling: {factor: 40, original_max_position_embeddings: 64, mscale: .707}, q_lora_rank: null}
optimizer: {lr: 1e-5, eps: 1e-20, betas: [0.1, 1e-1], lr_schedule: {warmup_steps: 3}}
data: {options: {a: "1e-4", b: "None", c: null, d: [1, 2.5, "on"], e: {"on": true}, f: "12:30", g: .inf, h: "x: y # z"}}
"""
    recipe = recipes.load(text, "train.steps=50").recipe
    dumped = dump_recipe(recipe)
    again = load_recipe(recipes.write(dumped, "dumped.yaml"))
    assert again.recipe == recipe
    assert dump_recipe(again.recipe) == dumped
    assert recipe_hash(again.recipe) == recipe_hash(recipe)
    assert recipe_hash(recipe) != recipe_hash(base().recipe)
    assert len(recipe_hash(recipe)) == 64


def test_c91_a_dumped_recipe_names_no_base_and_no_interpolation(recipes) -> None:
    dumped = dump_recipe(recipes.load("train: {seed: '${train.steps}'}").recipe)
    assert "extends" not in dumped
    assert "${" not in dumped
    assert "seed: 10\n" in dumped


def test_keys_without_effect_are_not_dumped_so_that_the_dump_is_not_refused(base) -> None:
    dumped = dump_recipe(base().recipe)
    assert "eval_sequences" not in dumped
    assert "min_lr" not in dumped
    assert "eval_sequences: 64" in dump_recipe(base("train.eval_every=5").recipe)


@pytest.mark.parametrize("text", ["no", "1e-4", "None", "null", "", "12:30:45", "010", "- x", "a: b", "ünï", "x\ny"])
def test_every_text_survives(recipes, base, text) -> None:
    recipe = base().recipe
    recipe = replace(recipe, data=replace(recipe.data, options={"x": text}))
    assert load_recipe(recipes.write(dump_recipe(recipe), "d.yaml")).recipe == recipe
