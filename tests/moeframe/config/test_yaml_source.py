from __future__ import annotations

import os

import pytest

from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError


def test_c76_a_duplicate_key_names_both_lines(recipes) -> None:
    assert recipes.lines("optimizer:\n  lr: 1\n  eps: 1e-8\n  lr: 2") == [
        "r.yaml:5:3: optimizer.lr: the key is given twice, on line 3 and on line 5. Keep one of them."
    ]


def test_c77_own_keys_win_over_merged_ones_and_provenance_names_the_anchor(recipes) -> None:
    loaded = recipes.load("optimizer: &o {lr: 1, eps: 2e-8}\ntrain:\n  seed: 3\n")
    assert loaded.recipe.optimizer.lr == 1.0
    text = """\
optimizer:
  lr_schedule: &slow {warmup_steps: 7, constant_steps: 8, decay_steps: 5}
  lr: 2
data:
  options:
    a: {<<: *slow, constant_steps: 3}
    b: {<<: [*slow, *slow]}
"""
    loaded = recipes.load(text)
    assert loaded.recipe.data.options["a"] == {"warmup_steps": 7, "constant_steps": 3, "decay_steps": 5}
    assert loaded.recipe.data.options["b"] == {"warmup_steps": 7, "constant_steps": 8, "decay_steps": 5}
    assert str(loaded.provenance["data.options.a.warmup_steps"]) == "r.yaml:3:37 (anchor 'slow')"
    assert str(loaded.provenance["data.options.a.constant_steps"]) == "r.yaml:7:36"


def test_c77_two_merge_keys_are_both_merged_and_the_earlier_wins(recipes) -> None:
    text = """\
data:
  options:
    one: &one {x: 1, y: 2}
    two: &two {y: 3, z: 4}
    both:
      <<: *one
      <<: *two
"""
    assert recipes.load(text).recipe.data.options["both"] == {"x": 1, "y": 2, "z": 4}


def test_a_merge_key_takes_mappings_only(recipes) -> None:
    assert recipes.lines("name: &n x\ndata: {<<: *n, repeat: true}") == [
        "r.yaml:3:8: data.<<: a merge key takes mappings only. Write `<<: *name` with the anchor of a mapping, or a "
        "list of such."
    ]


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_c90_an_empty_recipe_is_one_line_with_its_number(recipes, text) -> None:
    assert recipes.file_lines(text) == [
        "r.yaml:1:1: the file holds no recipe: it is empty. A recipe is a mapping of sections, such as "
        "`train: {steps: 200}`."
    ]


def test_c90_plain_text_is_one_line_with_its_number(recipes) -> None:
    assert recipes.file_lines("\nhello\n") == [
        "r.yaml:2:1: the file holds the text 'hello', not a recipe. A recipe is a mapping of sections, such as "
        "`train: {steps: 200}`."
    ]


def test_c90_a_list_is_no_recipe(recipes) -> None:
    assert recipes.file_lines("- a\n- b\n")[0].startswith("r.yaml:1:1: the file holds a list, not a recipe.")


def test_c90_a_tab_is_one_line_with_its_number(recipes) -> None:
    assert recipes.file_lines("name: x\ntrain:\n\tsteps: 5\n") == [
        "r.yaml:3:1: a tab stands where YAML wants spaces. Indent with spaces."
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: x\ntrain: {steps: 5\noptimizer: {}\n", "r.yaml:3:"),
        ("name: a: b\n", "r.yaml:1:8: not valid YAML: mapping values are not allowed here."),
        ("name: *nowhere\n", "r.yaml:1:7: not valid YAML: found undefined alias 'nowhere'. Define the anchor"),
        ("name: x\n---\nname: y\n", "r.yaml:2:1: the file holds more than one YAML document."),
        ('name: "x\n', "r.yaml:2:1: not valid YAML: while scanning a quoted scalar, found unexpected end of stream."),
        ("name: a\0b\n", "r.yaml:1:8: the character U+0000 may not stand in YAML. Delete it."),
    ],
)
def test_what_is_not_yaml_is_one_line_with_its_place(recipes, text, line) -> None:
    (printed,) = recipes.file_lines(text)
    assert printed.startswith(line)
    assert "\n" not in printed


def test_a_file_that_is_not_utf8_names_the_byte_and_its_place(recipes) -> None:
    assert recipes.file_lines(b"name: x\n# caf\xe9\n") == [
        "r.yaml:2:6: byte 0xe9 is not UTF-8, and a recipe must be. Save the file as UTF-8."
    ]


def test_a_byte_order_mark_is_no_harm(recipes) -> None:
    (recipes.folder / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + recipes.base.encode())
    assert load_recipe("bom.yaml").recipe.name == "base"


def test_a_missing_file_suggests_its_neighbour(recipes) -> None:
    recipes.write(recipes.base, "quickstart.yaml")
    with pytest.raises(RecipeError) as caught:
        load_recipe("quikstart.yaml")
    assert str(caught.value) == "quikstart.yaml: no such file. Did you mean quickstart.yaml?"


def test_a_missing_file_lists_the_recipes_next_to_it(recipes) -> None:
    recipes.write(recipes.base, "a/one.yaml")
    with pytest.raises(RecipeError, match=r"^a/xyz: no such file\. Recipes in a: one\.yaml\.$"):
        load_recipe("a/xyz")
    with pytest.raises(RecipeError, match=r"^b/xyz: no such file\. There is no recipe in b"):
        load_recipe("b/xyz")
    with pytest.raises(RecipeError, match=r"^xyz: no such file\. There is no recipe in the working directory\.$"):
        load_recipe("xyz")


def test_a_directory_is_no_recipe(recipes) -> None:
    with pytest.raises(RecipeError, match="this is a directory, not a recipe"):
        load_recipe(recipes.folder)


def test_a_pipe_or_a_device_is_no_recipe_and_is_not_waited_for(recipes) -> None:
    os.mkfifo(recipes.folder / "pipe")
    with pytest.raises(RecipeError, match=r"^pipe: this is a pipe, not a file\. Write the recipe to a file"):
        load_recipe("pipe")
    with pytest.raises(RecipeError, match=r"^/dev/zero: this is a device, not a file\."):
        load_recipe("/dev/zero")
    with pytest.raises(RecipeError, match=r"^'a\\x00b' is no path: embedded null byte"):
        load_recipe("a\0b")
    (line,) = recipes.file_lines('extends: ["\\ud800"]')
    assert line.startswith("r.yaml:1:11: extends: ")
    assert "is no path: " in line


def test_a_file_of_another_size_than_any_recipe_is_refused(recipes) -> None:
    (line,) = recipes.file_lines(b"name: x\n" + b"#" * 2**20)
    assert line == "r.yaml: the file has 1,048,584 bytes; a recipe may have 1,048,576. Name a YAML recipe."


@pytest.mark.parametrize("opening", ["[", "{b: ", "- "])
def test_a_bottomless_value_is_one_line_with_its_place(recipes, opening) -> None:
    (line,) = recipes.file_lines("name: x\na:\n  " + opening * 5000)
    assert line.startswith("r.yaml:3:")
    assert "more than 30 levels of nesting." in line
    (line,) = recipes.lines("name: x", "data.options.a=" + "[" * 5000)
    assert "more than 30 levels of nesting." in line


def test_aliases_that_stand_for_more_than_a_recipe_are_not_written_out(recipes) -> None:
    lists = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]\n" for n in range(1, 12))
    merges = "".join(f"x{n}: &x{n} {{<<: [*x{n - 1}, *x{n - 1}], k{n}: 1}}\n" for n in range(1, 40))
    for first, rest in (("[1, 1]", lists), ("{a: 1}", merges)):
        (line,) = recipes.file_lines(f"x0: &x0 {first}\n{rest}")
        assert "more than 20,000 values once every alias is written out." in line


@pytest.mark.parametrize(
    ("key", "reading"),
    [
        ("on", "a boolean"),
        ("yes", "a boolean"),
        ("NO", "a boolean"),
        ("true", "a boolean"),
        ("~", "null"),
        ("12", "a n"),
    ],
)
def test_a_key_that_yaml_takes_for_something_else_is_refused(recipes, key, reading) -> None:
    (line,) = recipes.lines(f"data:\n  options:\n    {key}: 1")
    assert line.startswith(f"r.yaml:4:5: data.options.{key}: the key {key!r} is {reading}")
    assert f'Quote it ("{key}")' in line


def test_a_quoted_key_is_text(recipes) -> None:
    assert recipes.load('data:\n  options:\n    "on": 1').recipe.data.options == {"on": 1}


def test_a_tag_is_refused(recipes) -> None:
    (line,) = recipes.lines("name: !!python/object:os.system x")
    assert line.startswith("r.yaml:2:7: name: the tag !!python/object:os.system is not allowed in a recipe.")


def test_an_explicit_str_tag_is_as_good_as_quotes(recipes) -> None:
    assert recipes.load("name: !!str 123").recipe.name == "123"


def test_an_anchor_that_contains_itself_is_refused(recipes) -> None:
    assert "the anchor 'a' contains itself" in recipes.lines("data: {options: &a {b: *a}}")[0]


def test_the_problem_of_an_anchor_counts_once(recipes) -> None:
    lines = recipes.lines("data: {options: {a: &a {x: no}, b: *a, c: *a}}")
    assert [line.split(": given")[0] for line in lines] == ["r.yaml:2:28: data.options.a.x"]


def test_a_link_to_nothing_and_a_base_that_is_missing_propose_no_file_that_cannot_be(recipes) -> None:
    (recipes.folder / "gone.yaml").symlink_to("nowhere.yaml")
    with pytest.raises(RecipeError) as caught:
        load_recipe("gone.yaml")
    assert str(caught.value) == (
        "gone.yaml: a link to nowhere.yaml, which is not there. There is no recipe in the working directory."
    )
    (line,) = recipes.file_lines("extends: rr.yaml\n")
    assert line.startswith("r.yaml:1:10: extends: rr.yaml: no such file. There is no recipe in the working directory.")


def test_what_is_left_open_is_named_by_where_it_opens(recipes) -> None:
    (line,) = recipes.file_lines("model: {a: [1, 2\n")
    assert line.endswith("Close the bracket, brace or quote that is opened on line 1, column 12.")
