from __future__ import annotations

import pytest

from moeframe.config.load import load_recipe


def test_c79_lists_are_replaced_not_joined(recipes) -> None:
    recipes.write("extends: base.yaml\ndata: {options: {files: [a, b]}}\n", "mid.yaml")
    recipes.over_base("")
    path = recipes.write("extends: mid.yaml\ndata: {options: {files: [c]}}\n", "top.yaml")
    assert load_recipe(path).recipe.data.options == {"files": ["c"]}


def test_c79_an_override_may_replace_one_entry_of_a_list(base) -> None:
    loaded = base("optimizer.betas.0=0.8")
    assert loaded.recipe.optimizer.betas == (0.8, 0.95)
    assert str(loaded.provenance["optimizer.betas.0"]) == "override optimizer.betas.0=0.8"
    assert str(loaded.provenance["optimizer.betas.1"]) == "default"


@pytest.mark.parametrize("key", ["optimizer.betas.2", "optimizer.betas.first", "optimizer.betas.-1"])
def test_c79_an_index_that_the_list_does_not_have_lists_those_it_has(recipes, key) -> None:
    assert recipes.lines("", f"{key}=0.8") == [
        f"{key}=0.8: {key}: optimizer.betas is a list of 2 entries, and {key!r} names none of them. "
        "Legal: optimizer.betas.0, optimizer.betas.1; or replace the whole list: optimizer.betas=[...]."
    ]


def test_own_keys_win_over_bases_and_later_bases_over_earlier_ones(recipes) -> None:
    recipes.write("train: {seed: 1, steps: 11, eval_every: 1}\nname: one\n", "one.yaml")
    recipes.write("train: {seed: 2, steps: 12}\n", "two.yaml")
    recipes.write(recipes.base, "base.yaml")
    recipes.write("extends: [base.yaml, one.yaml, two.yaml]\ntrain: {seed: 3}\n")
    loaded = load_recipe("r.yaml")
    train = loaded.recipe.train
    assert (train.seed, train.steps, train.eval_every, train.seq_len) == (3, 12, 1, 32)
    assert loaded.recipe.name == "one"
    assert [str(loaded.provenance[f"train.{key}"]) for key in ("seed", "steps", "eval_every", "seq_len")] == [
        "r.yaml:2:15",
        "two.yaml:1:25",
        "one.yaml:1:41",
        "base.yaml:26:29",
    ]


def test_null_clears_a_section_that_may_be_null(recipes) -> None:
    scaling = "model: {rope_scaling: {factor: 40, original_max_position_embeddings: 64}}"
    assert recipes.load(scaling).recipe.model.rope_scaling.factor == 40.0
    assert recipes.load(scaling, "model.rope_scaling=null").recipe.model.rope_scaling is None


def test_a_section_that_was_null_starts_anew(recipes) -> None:
    assert recipes.lines("", "model.rope_scaling.factor=40") == [
        "model.rope_scaling.factor=40: model.rope_scaling.original_max_position_embeddings: missing; must be a whole "
        "number. Give it in the recipe, or on the command line: "
        "model.rope_scaling.original_max_position_embeddings=VALUE."
    ]


@pytest.mark.parametrize("value", ["[1]", "5", "text", "[{name: x}]"])
def test_a_section_replaced_by_something_else_is_one_problem(recipes, value) -> None:
    for section in ("dispatcher", "optimizer", "launch", "data.options"):
        problems = recipes.problems("", f"{section}={value}")
        assert [problem.path for problem in problems] == [section]
        assert "must be a mapping" in problems[0].message


def test_a_list_replaced_by_a_mapping_is_one_problem(recipes) -> None:
    (problem,) = recipes.problems("optimizer: {betas: {first: 0.9}}")
    assert problem.message == "given a mapping; must be a list of 2: [a number, a number]."


@pytest.mark.parametrize("section", ["parallel", "launch", "train", "optimizer.lr_schedule", "model"])
def test_c81_null_over_a_section_is_refused(recipes, section) -> None:
    problems = recipes.problems("", f"{section}=null")
    assert [problem.path for problem in problems] == [section]
    assert "given null over a whole section" in problems[0].message


def test_c83_missing_values_are_one_list_with_those_reached_by_interpolation(recipes) -> None:
    text = "train:\n  steps: ???\n  seed: ${train.steps}\nname: ${nope.key}\n"
    assert recipes.lines(text) == [
        "r.yaml:3:10: train.steps: missing: the recipe says ??? (to be given); must be a whole number. Give it in the "
        "recipe, or on the command line: train.steps=VALUE.",
        "r.yaml:4:9: train.seed: missing: the recipe says ??? (to be given), reached through ${train.steps}; must be a "
        "whole number. Give it in the recipe, or on the command line: train.seed=VALUE.",
        "r.yaml:5:7: name: '${nope.key}' points at 'nope.key', which the recipe does not have. Correct the key inside "
        "${...}, or give that key a value.",
    ]


def test_c83_an_override_gives_what_the_file_leaves_open(recipes) -> None:
    assert recipes.load("train:\n  steps: ???\n  seed: ${train.steps}", "train.steps=7").recipe.train.seed == 7


def test_c83_a_bare_missing_value_in_flow_style_says_to_quote_it(recipes) -> None:
    assert recipes.file_lines("train: {steps: ???}") == [
        'r.yaml:1:16: not valid YAML: ??? cannot stand bare inside {...} or [...]. Quote it: "???".'
    ]
    assert recipes.lines("train: {steps: '???'}")[0].startswith(
        "r.yaml:2:16: train.steps: missing: the recipe says ???"
    )


def test_c84_an_interpolation_reads_files_overrides_and_defaults(recipes) -> None:
    text = "train: {seed: '${train.steps}', eval_every: '${parallel.pp}'}\nname: run-${train.steps}-${parallel.ep}\n"
    loaded = recipes.load(text, "train.steps=7")
    assert (loaded.recipe.train.seed, loaded.recipe.train.eval_every, loaded.recipe.name) == (7, 1, "run-7-1")
    assert str(loaded.provenance["train.seed"]) == "r.yaml:2:15 = ${train.steps}"


def test_an_interpolation_brings_a_whole_section(recipes) -> None:
    text = "data: {options: {a: {x: 1}, b: '${data.options.a}'}}"
    assert recipes.load(text).recipe.data.options["b"] == {"x": 1}


def test_c84_what_cannot_be_resolved_names_key_place_and_expression(recipes) -> None:
    lines = recipes.lines("train: {seed: '${train.eval_every}', eval_every: '${train.seed}'}\nname: ${}\n")
    assert lines == [
        "r.yaml:2:15: train.seed: '${train.eval_every}' leads back to itself. Give one of the keys in the circle a "
        "value.",
        "r.yaml:2:50: train.eval_every: '${train.seed}' leads back to itself. Give one of the keys in the circle a "
        "value.",
        "r.yaml:3:7: name: '${}' is not an interpolation that a recipe may hold. Write ${section.key}, such as "
        "${train.seq_len}.",
    ]


@pytest.mark.parametrize("text", ["${.steps}", "${a.${b.c}}", "${train.steps", "${train steps}", "${train.steps}${"])
def test_only_section_and_key_may_be_interpolated(recipes, text) -> None:
    (problem,) = recipes.problems(f"name: '{text}'")
    assert problem.path == "name"
    assert "is not an interpolation that a recipe may hold" in problem.message


def test_c86_the_environment_is_refused_with_the_way_out(recipes) -> None:
    assert recipes.lines("train: {seed: '${oc.env:N}'}") == [
        "r.yaml:2:15: train.seed: '${oc.env:N}' calls the resolver 'oc.env'; a recipe is data and "
        "runs none. Give it on "
        'the command line instead: `moeframe run RECIPE train.seed="$N"`.'
    ]


@pytest.mark.parametrize("call", ["oc.decode:x", "oc.create:[1]", "oc.dict.keys:model", "mine:1,2", ":x"])
def test_no_resolver_runs(recipes, call) -> None:
    (problem,) = recipes.problems(f"name: '${{{call}}}'")
    assert "a recipe is data and runs none" in problem.message


def test_c86_a_value_of_the_shell_follows_yaml_and_empty_is_null(recipes) -> None:
    assert recipes.load("", "train.seed=8").recipe.train.seed == 8
    assert recipes.load("", "optimizer.clip_grad_norm=").recipe.optimizer.clip_grad_norm is None
    assert recipes.lines("", "name=no")[0].endswith('must be text. Quote it: "no".')
    assert recipes.lines("", "train.seed=") == [
        "train.seed=: train.seed: given nothing (null); must be a whole number. Give a value, or remove the line."
    ]


def test_options_belong_to_the_backend_that_was_named_with_them(recipes) -> None:
    text = "dispatcher: {name: deep, options: {num_sms: 24}}"
    assert recipes.load(text, "dispatcher.name=plain").recipe.dispatcher.options == {}
    assert recipes.load(text, "dispatcher.name=deep").recipe.dispatcher.options == {"num_sms": 24}
    assert recipes.load(text, "dispatcher.options.x=1", "dispatcher.name=plain").recipe.dispatcher.options == {"x": 1}
    assert recipes.load(text, "dispatcher={name: plain}").recipe.dispatcher.options == {}
    assert recipes.load(text, "dispatcher.options.x=1").recipe.dispatcher.options == {"num_sms": 24, "x": 1}


def test_a_file_that_names_another_backend_starts_without_options(recipes) -> None:
    recipes.over_base("dispatcher: {name: deep, options: {num_sms: 24}}")
    recipes.write("extends: r.yaml\ndispatcher: {name: plain}\n", "top.yaml")
    assert load_recipe("top.yaml").recipe.dispatcher.options == {}


def test_a_section_that_stands_for_another_one_is_a_copy_that_later_layers_change(recipes) -> None:
    text = "data: {options: {a: {x: '1', y: '${train.steps}'}, b: '${data.options.a}'}}"
    loaded = recipes.load(text, "data.options.b.x=two", "train.steps=7")
    assert loaded.recipe.data.options == {"a": {"x": "1", "y": 7}, "b": {"x": "two", "y": 7}}


def test_a_section_that_stands_for_nothing_is_replaced_by_a_later_layer(recipes) -> None:
    assert recipes.load("data: {options: {b: '${data.nothing}'}}", "data.options.b.x=1").recipe.data.options == {
        "b": {"x": 1}
    }
