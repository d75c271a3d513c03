"""Paths among the options of a backend."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeframe.config.load import load_recipe
from moeframe.config.options import typed_options
from moeframe.config.paths import with_absolute_paths
from moeframe.config.provenance import Provenance
from moeframe.protocols.paths import path_field, path_rule


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every kind of field with a path, and one without."""

    one: str | None = path_field(None)
    patterns: tuple[str, ...] = path_field((), patterns=True)
    tokenizer: str = path_field("byte", words=("byte",))
    name: str = "plain"


def resolved(loaded: Any) -> Options:
    options, problems = typed_options(Options, loaded.recipe.data.options, "data.options", loaded.provenance)
    assert not problems
    result: Options = with_absolute_paths(options, "data.options", loaded.provenance)
    return result


def test_a_path_is_relative_to_the_file_that_gives_it(recipes, tmp_path: Path) -> None:
    recipes.write(recipes.base, "base.yaml")
    recipes.write("extends: ../base.yaml\ndata: {options: {one: a, patterns: [b/*.txt], name: c}}\n", "deep/mid.yaml")
    recipes.write("extends: deep/mid.yaml\ndata: {options: {tokenizer: t.json}}\n", "top.yaml")
    options = resolved(load_recipe("top.yaml"))
    assert options.one == str(tmp_path / "deep" / "a")
    assert options.patterns == (str(tmp_path / "deep" / "b" / "*.txt"),)
    assert options.tokenizer == str(tmp_path / "t.json")
    assert options.name == "c"


def test_an_override_is_relative_to_the_working_directory(recipes, tmp_path: Path) -> None:
    recipes.write(recipes.base, "deep/base.yaml")
    overrides = ["data.options.one=../x", "data.options.patterns=[y, /z]"]
    options = resolved(load_recipe("deep/base.yaml", overrides))
    assert options.one == str(tmp_path.parent / "x")
    assert options.patterns == (str(tmp_path / "y"), "/z")


def test_words_and_defaults_are_no_paths(recipes) -> None:
    recipes.write(recipes.base, "base.yaml")
    assert resolved(load_recipe("base.yaml", ["data.options.tokenizer=byte"])) == Options()


def test_a_folder_whose_name_looks_like_a_pattern_is_escaped(recipes, tmp_path: Path) -> None:
    text = recipes.base.replace("data: {name: bytes}", "data: {name: bytes, options: {patterns: [a.txt]}}")
    recipes.write(text, "odd[1]/r.yaml")
    assert resolved(load_recipe("odd[1]/r.yaml")).patterns == (str(tmp_path / "odd[[]1]" / "a.txt"),)


def test_options_made_in_python_are_relative_to_the_working_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert with_absolute_paths(Options(one="a"), "data.options", Provenance()).one == str(tmp_path / "a")


def test_a_path_field_is_an_ordinary_field_with_a_default() -> None:
    rules = {name: path_rule(spec.metadata) for name, spec in Options.__dataclass_fields__.items()}
    assert [name for name, rule in rules.items() if rule is None] == ["name"]
    assert path_rule(field(metadata={"moeframe.path": "no rule"}).metadata) is None
