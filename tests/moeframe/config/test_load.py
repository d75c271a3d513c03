from __future__ import annotations

from pathlib import Path

import pytest

from moeframe.config.load import LoadedRecipe, load_recipe, read_recipe, with_overrides
from moeframe.config.typed import HOLE
from moeframe.errors import Location, RecipeError


def test_a_recipe_becomes_dataclasses_and_every_value_knows_its_place(base) -> None:
    loaded = base("train.steps=50")
    assert loaded.recipe.train.steps == 50
    assert loaded.recipe.optimizer.betas == (0.9, 0.95)
    assert loaded.recipe.world_size == 1
    assert loaded.recipe.backends == loaded.backends
    assert loaded.backends == {
        "dispatcher": "plain",
        "sharding": "whole",
        "schedule": "onebyone",
        "compute": "simple",
        "data": "bytes",
    }
    provenance = loaded.provenance
    assert provenance["model.vocab_size"].where == Location(file="base.yaml", line=4, column=15)
    assert str(provenance["train.steps"]) == "override train.steps=50"
    assert str(provenance["parallel.ep"]) == "default"
    assert (provenance.layer("parallel.ep"), provenance.layer("model.vocab_size")) == (-1, 0)
    assert provenance.layer("train.steps") > 0
    assert (loaded.path, loaded.overrides, loaded.problems) == (Path("base.yaml"), ("train.steps=50",), ())


def test_c80_every_problem_is_reported_at_once_with_its_place_and_fix(recipes) -> None:
    text = """\
trane: {steps: 5}
optimizer: {lrr: 1e-3, betas: [0.9]}
train:
  steps: many
  precision: fp32
launch: {nproc_per_node: 2.5}
data: {repeat: maybe}
"""
    assert recipes.lines(text, "model.hiden_size=8", "model.q_lora_rank=None") == [
        "r.yaml:2:1: trane: unknown key 'trane'. Did you mean 'train'?",
        "r.yaml:3:13: optimizer.lrr: unknown key 'lrr'. Did you mean 'lr'?",
        "r.yaml:3:24: optimizer.betas: given 1 entries; must be a list of 2: [a number, a number]. Give 2 entries.",
        "r.yaml:5:10: train.steps: given 'many'; must be a whole number. Write a whole number in "
        "decimal digits, such as "
        "200.",
        "r.yaml:6:14: train.precision: given 'fp32'; must be one of float32, bfloat16, float64. Choose one of them.",
        "r.yaml:7:26: launch.nproc_per_node: given 2.5 (a number); must be a whole number. Write a whole number in "
        "decimal digits, such as 200.",
        "r.yaml:8:16: data.repeat: given 'maybe'; must be true or false. Write true or false.",
        "model.hiden_size=8: model.hiden_size: unknown key 'hiden_size'. Did you mean 'hidden_size'?",
        "model.q_lora_rank=None: model.q_lora_rank: given 'None', which is text to YAML. Write null.",
    ]


def test_a_missing_section_is_one_problem(recipes) -> None:
    lines = recipes.file_lines("schema_version: 1\nname: x\n")
    assert lines[0] == ("r.yaml:1:1: model: missing; must be a mapping (a section with keys). Add a section `model:`.")
    assert [line.split()[1] for line in lines] == [
        f"{section}:"
        for section in ("model", "dispatcher", "sharding", "schedule", "compute", "data", "optimizer", "train")
    ]


def test_a_misspelt_section_is_one_problem(recipes) -> None:
    assert recipes.file_lines(recipes.base.replace("optimizer:", "optimiser:")) == [
        "r.yaml:25:1: optimiser: unknown key 'optimiser'. Did you mean 'optimizer'?"
    ]


def test_a_missing_key_points_at_its_section(recipes) -> None:
    text = recipes.base.replace("optimizer: {lr: 1e-3}", "optimizer: {eps: 1e-8}")
    assert recipes.file_lines(text) == [
        "r.yaml:25:1: optimizer.lr: missing; must be a number. Give it in the recipe, or on the command line: "
        "optimizer.lr=VALUE."
    ]


def test_another_schema_version_is_refused(recipes) -> None:
    assert recipes.lines("schema_version: 2") == [
        "r.yaml:2:17: schema_version: given 2 (a whole number); must be 1. Write 1."
    ]


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.steps", "train.steps: the argument 'train.steps' has no '='. An override is key=value, such as"),
        ("=5", "=5: '' is not a dotted key."),
        ("train..steps=5", "train..steps=5: train..steps: 'train..steps' is not a dotted key."),
        ("extends=x.yaml", "extends=x.yaml: extends: cannot be overridden. Name the base recipes in the file."),
        ("train.steps=[1", "train.steps=[1: train.steps: not valid YAML: while parsing a flow sequence,"),
        ("train.stepz=5", "train.stepz=5: train.stepz: unknown key 'stepz'. Did you mean 'steps'?"),
        ("train.steps.x=5", "train.steps.x=5: train.steps: given a mapping; must be a whole number."),
        (
            "optimizer.betas=0.9,0.95",
            "optimizer.betas=0.9,0.95: optimizer.betas: given '0.9,0.95'; must be a list of 2:",
        ),
        (
            "data.options={a:1}",
            "data.options={a:1}: data.options: given the key 'a:1' without a value. Put a space after",
        ),
        ("train.seed=@x", "train.seed=@x: train.seed: not valid YAML: while scanning for the next token,"),
    ],
)
def test_c87_an_override_that_cannot_be_meant_says_how_to_write_it(recipes, override, line) -> None:
    (printed,) = recipes.lines("", override)
    assert printed.startswith(line)


def test_c87_the_hint_for_a_list_is_what_to_write(recipes, base) -> None:
    (problem,) = recipes.problems("", "optimizer.betas=0.8,0.9")
    assert problem.fix == "Put it in brackets: [0.8,0.9]."
    assert base("optimizer.betas=[0.8,0.9]").recipe.optimizer.betas == (0.8, 0.9)


def test_c87_an_equals_sign_in_the_value_is_kept(base) -> None:
    assert base("train.output_dir=a=b").recipe.train.output_dir == "a=b"


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001"])
def test_c69_a_number_reads_the_same_in_a_file_and_in_an_override(recipes, text) -> None:
    assert recipes.load(f"optimizer: {{lr: {text}}}").recipe.optimizer.lr == 1e-4
    assert recipes.load("", f"optimizer.lr={text}").recipe.optimizer.lr == 1e-4
    assert recipes.load(f"data: {{options: {{x: {text}}}}}").recipe.data.options["x"] == 1e-4


@pytest.mark.parametrize("spelling", ["null", "~", ""])
def test_c71_null_has_the_spellings_of_yaml(base, spelling) -> None:
    assert base(f"model.q_lora_rank={spelling}").recipe.model.q_lora_rank is None


def test_the_last_override_of_a_key_wins(base) -> None:
    assert base("train.seed=1", "train.seed=2").recipe.train.seed == 2


def test_an_override_with_a_mapping_is_merged_like_a_file(base) -> None:
    train = base("train={steps: 3, seed: 4}").recipe.train
    assert (train.steps, train.seed, train.seq_len) == (3, 4, 32)


def test_extends_is_relative_to_the_file_that_names_it(recipes) -> None:
    recipes.write(recipes.base, "a/b/base.yaml")
    recipes.write("extends: b/base.yaml\nname: mid\n", "a/mid.yaml")
    recipes.write("extends: [../a/mid.yaml]\n", "c/top.yaml")
    loaded = load_recipe("c/top.yaml")
    assert loaded.recipe.name == "mid"
    assert loaded.provenance.files == ("a/b/base.yaml", "a/mid.yaml", "c/top.yaml")


def test_extends_in_a_circle_is_refused_with_the_circle(recipes) -> None:
    recipes.write("extends: b.yaml\n", "a.yaml")
    recipes.write("name: x\nextends: [a.yaml]\n", "b.yaml")
    with pytest.raises(RecipeError) as caught:
        load_recipe("a.yaml")
    assert str(caught.value) == (
        "b.yaml:2:11: extends: the recipe extends itself: a.yaml -> b.yaml -> a.yaml. Remove one of the lines."
    )


def test_files_that_extend_without_end_are_refused(recipes) -> None:
    """Two lines in each of 30 files name more bases than there is time to read."""
    for number in range(30):
        recipes.write(f"extends: [{number + 1}.yaml, {number + 1}.yaml]\n", f"{number}.yaml")
    recipes.write(recipes.base, "30.yaml")
    with pytest.raises(RecipeError, match=r"extends: more than 100 files extend one another"):
        load_recipe("0.yaml")


def test_a_base_that_cannot_be_read_is_told_where_it_is_named(recipes, tmp_path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    recipes.write(f"extends: [loop.yaml, /dev/zero, ., {'a' * 300}.yaml]\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe("r.yaml")
    lines = [str(problem) for problem in caught.value.problems]
    assert lines[0].startswith("r.yaml:1:11: extends: loop.yaml: cannot be read: Too many levels of symbolic links.")
    assert lines[1].startswith("r.yaml:1:22: extends: /dev/zero: this is a device, not a file.")
    assert lines[2].startswith("r.yaml:1:33: extends: .: this is a directory, not a recipe.")
    assert lines[3].startswith("r.yaml:1:36: extends: aaa")
    assert "File name too long" in lines[3]


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["train.steps=5", "train.steps=6"], "train.steps=5 has no effect: train.steps=6 comes later"),
        (["train.steps=5", "train={steps: 6}"], "train.steps=5 has no effect: train={steps: 6} comes later"),
        (["train={steps: 6}", "train.steps=5"], "train={steps: 6} has no effect: train.steps=5 comes later"),
        (["optimizer.betas.0=0.8", "optimizer.betas=[0.9, 0.9]"], "optimizer.betas.0=0.8 has no effect"),
        (
            ["model.rope_scaling=null", "model.rope_scaling={factor: 2, original_max_position_embeddings: 9}"],
            "=null has",
        ),
    ],
)
def test_an_override_that_a_later_one_replaces_is_told(recipes, caplog, overrides, told) -> None:
    recipes.load("name: x", *overrides)
    (line,) = caplog.messages
    assert told in line


def test_overrides_that_add_to_one_another_are_not_told(recipes, caplog) -> None:
    recipes.load("name: x", "train.steps=5", "train.steps=5", "train={seed: 3}", "optimizer.betas.0=0.8", "name=y")
    assert caplog.messages == []


def test_one_base_may_be_reached_on_two_ways(recipes) -> None:
    recipes.write(recipes.base, "base.yaml")
    recipes.write("extends: base.yaml\nname: left\n", "left.yaml")
    recipes.write("extends: [base.yaml]\n", "right.yaml")
    recipes.write("extends: [left.yaml, right.yaml]\n")
    assert load_recipe("r.yaml").recipe.name == "base"


def test_a_missing_base_points_at_the_line_that_names_it(recipes) -> None:
    recipes.write(recipes.base, "base.yaml")
    recipes.write("name: x\nextends: [bse.yaml]\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe("r.yaml")
    assert str(caught.value) == (
        "r.yaml:2:11: extends: bse.yaml: no such file. Did you mean base.yaml? Paths are relative to this file."
    )


@pytest.mark.parametrize("value", ["{a: 1}", "[[a]]", "", "[{a: b}]", "${name}", "[3]", "[null]", "no"])
def test_extends_takes_files_only(recipes, value) -> None:
    recipes.write(f"extends: {value}\n")
    with pytest.raises(RecipeError, match=r"^r\.yaml:1:\d+: extends: given .*; must be a list of recipe files\."):
        load_recipe("r.yaml")


def test_broken_files_are_reported_together(recipes) -> None:
    recipes.write("a: [\n", "one.yaml")
    recipes.write("\tx: 1\n", "two.yaml")
    recipes.write("extends: [one.yaml, two.yaml]\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe("r.yaml")
    assert [str(problem.where) for problem in caught.value.problems] == ["one.yaml:2:1", "two.yaml:1:1"]


def test_init_from_is_relative_to_the_file_that_gives_it(recipes, tmp_path) -> None:
    recipes.write(recipes.base, "a/base.yaml")
    recipes.write("extends: base.yaml\nmodel: {init_from: weights}\n", "a/mid.yaml")
    recipes.write("extends: a/mid.yaml\n", "top.yaml")
    assert load_recipe("top.yaml").recipe.model.init_from == str(tmp_path / "a" / "weights")
    assert load_recipe("top.yaml", ["model.init_from=w"]).recipe.model.init_from == str(tmp_path / "w")
    assert load_recipe("top.yaml", ["model.init_from=null"]).recipe.model.init_from is None


def test_a_recipe_with_problems_still_has_its_good_values(recipes) -> None:
    loaded = read_recipe(recipes.over_base("train: {steps: x, seed: 5}\ndispatcher: {name: 3}"))
    assert loaded.recipe.train.steps is HOLE
    assert loaded.recipe.train.seed == 5
    assert set(loaded.backends) == {"sharding", "schedule", "compute", "data"}
    assert [problem.path for problem in loaded.problems] == ["train.steps", "dispatcher.name"]


def test_code_may_set_values_and_explain_knows_it(base) -> None:
    loaded = with_overrides(base(), {"dispatcher.use_flex_dispatcher": True, "train.seed": 9}, origin="assemble(...)")
    assert loaded.recipe.dispatcher.use_flex_dispatcher is True
    assert loaded.recipe.train.seed == 9
    assert str(loaded.provenance["dispatcher.use_flex_dispatcher"]) == "override assemble(...)"


@pytest.mark.parametrize(("key", "value"), [("train.seed", "x"), ("train.sead", 3), ("nothing.at", 1)])
def test_code_cannot_set_what_a_recipe_cannot_say(base, key, value) -> None:
    with pytest.raises(RecipeError, match="assemble"):
        with_overrides(base(), {key: value}, origin="assemble(...)")


def test_a_recipe_made_in_python_has_no_places(base) -> None:
    loaded = LoadedRecipe.of(base().recipe)
    assert loaded.provenance.where("train.steps") is None
    assert loaded.problems == ()
