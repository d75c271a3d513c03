from __future__ import annotations

from dataclasses import replace

import pytest

from moeframe.config.load import LoadedRecipe
from moeframe.config.moot import moot_keys, moot_problems
from moeframe.config.provenance import Provenance

SWITCHED_OFF = [
    ("train: {eval_sequences: 8}", "train.eval_sequences", "train.eval_every is 0"),
    (
        "optimizer: {lr_schedule: {min_lr: 1e-5}}",
        "optimizer.lr_schedule.min_lr",
        "optimizer.lr_schedule.decay_steps is 0",
    ),
    ("optimizer: {lr_schedule: {decay_steps: 5}}", "optimizer.lr_schedule.decay_steps", "constant_steps is null"),
    ("optimizer: {lr_schedule: {constant_steps: 5}}", "optimizer.lr_schedule.constant_steps", "decay_steps is 0"),
    ("optimizer: {lr_schedule: {final_lr: 1e-6}}", "optimizer.lr_schedule.final_lr", "min_lr_steps is null"),
    ("model: {mtp_loss_weight: 0.3}", "model.mtp_loss_weight", "model.num_nextn_predict_layers is 0"),
    (
        "model: {topk_method: greedy, bias_update_speed: 1e-3}",
        "model.bias_update_speed",
        "model.topk_method is greedy",
    ),
    ("train: {recompute: full, recompute_phases: [attend]}", "train.recompute_phases", "train.recompute is full"),
    ("model: {init_from_differs: [rope_theta]}", "model.init_from_differs", "model.init_from is null"),
    ("debug: {ledger_timeout_s: 5}", "debug.ledger_timeout_s", "debug.ledger is false"),
    (
        "model: {aux_loss_alpha: 0, aux_loss_selection: scores}",
        "model.aux_loss_selection",
        "model.aux_loss_alpha is 0.0",
    ),
]


def problems(loaded: LoadedRecipe) -> list[str]:
    return [str(problem) for problem in moot_problems(loaded.recipe, loaded.provenance)]


@pytest.mark.parametrize(("text", "key", "because"), SWITCHED_OFF)
def test_a_key_that_would_be_ignored_is_refused(recipes, text, key, because) -> None:
    (line,) = problems(recipes.load(text))
    assert line.startswith(f"{key}: given ")
    assert f"but it is ignored while {because}" in line or because in line
    assert "Remove it, or set" in line


def test_a_default_that_was_written_out_is_refused_too(recipes) -> None:
    assert problems(recipes.load("train: {eval_sequences: 64}")) == [
        "train.eval_sequences: given 64, but it is ignored while train.eval_every is 0. Remove it, or set "
        "train.eval_every to the number of steps between validations."
    ]


def test_a_list_is_shown_as_recipes_write_it(recipes) -> None:
    (line,) = problems(recipes.load("train: {recompute_phases: [attend]}"))
    assert line.startswith("train.recompute_phases: given [attend], but it is ignored")


def test_a_key_that_acts_is_no_problem(recipes) -> None:
    schedule = "{warmup_steps: 1, constant_steps: 2, decay_steps: 3, min_lr: 1e-5, min_lr_steps: 2, final_lr: 1e-6}"
    text = f"train: {{eval_every: 5, eval_sequences: 8}}\noptimizer: {{lr_schedule: {schedule}}}"
    assert problems(recipes.load(text)) == []


def test_what_an_override_switches_off_goes_back_to_its_default(recipes) -> None:
    loaded = recipes.load("train: {eval_every: 5, eval_sequences: 8}", "train.eval_every=0")
    assert problems(loaded) == []
    assert loaded.recipe.train.eval_sequences == 64
    assert str(loaded.provenance["train.eval_sequences"]) == (
        "default (r.yaml:2:40 gave 8, without effect since override train.eval_every=0)"
    )


def test_a_whole_chain_goes_back(recipes) -> None:
    schedule = "{constant_steps: 2, decay_steps: 3, min_lr: 1e-5, min_lr_steps: 2, final_lr: 1e-6}"
    loaded = recipes.load(f"optimizer: {{lr_schedule: {schedule}}}", "optimizer.lr_schedule.decay_steps=0")
    assert problems(loaded) == []
    phases = loaded.recipe.optimizer.lr_schedule
    assert (phases.constant_steps, phases.min_lr, phases.min_lr_steps, phases.final_lr) == (None, 0.0, None, None)


def test_an_override_of_a_key_that_is_switched_off_is_refused(recipes) -> None:
    assert len(problems(recipes.load("train: {eval_every: 0}", "train.eval_sequences=8"))) == 1


def test_a_recipe_without_places_counts_what_differs_from_the_default(base) -> None:
    recipe = base().recipe
    assert list(moot_problems(recipe, Provenance())) == []
    recipe = replace(recipe, train=replace(recipe.train, eval_sequences=8))
    assert [problem.path for problem in moot_problems(recipe, Provenance())] == ["train.eval_sequences"]


def test_moot_keys_name_their_switch(base) -> None:
    assert moot_keys(base().recipe)["train.eval_sequences"].key == "train.eval_every"
    assert "train.eval_sequences" not in moot_keys(base("train.eval_every=1").recipe)
