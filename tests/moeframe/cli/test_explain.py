from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moeframe.cli import main
from moeframe.cli.explain import explain_recipe
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError, UserInputError

ROOT = Path(__file__).parents[3]
TINY = Path("recipes/deepseek_v3/tiny.yaml")


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_a_key_is_explained_with_its_place() -> None:
    text, refusal = explain_recipe(TINY, ["optimizer.lr"], [])
    assert refusal is None
    assert text.startswith("optimizer.lr: 0.006  # recipes/deepseek_v3/tiny.yaml:")


def test_an_override_may_stand_before_or_after_the_key() -> None:
    for arguments in (["train.steps", "train.steps=7"], ["train.steps=7", "train.steps"]):
        assert explain_recipe(TINY, arguments, [])[0] == "train.steps: 7  # override train.steps=7"


def test_a_base_recipe_is_named_in_the_heading_and_in_the_places() -> None:
    text, _ = explain_recipe(Path("recipes/quickstart.yaml"), [], [])
    assert text.splitlines()[0] == "# recipes/quickstart.yaml over recipes/deepseek_v3/tiny.yaml"
    assert "# recipes/deepseek_v3/tiny.yaml:" in text
    assert "# edp: 1" in text


def test_the_explanation_is_a_recipe(tmp_path) -> None:
    text, _ = explain_recipe(TINY, [], [])
    (tmp_path / "again.yaml").write_text(text)
    assert load_recipe(tmp_path / "again.yaml").recipe.model == load_recipe(TINY).recipe.model


def test_two_keys_are_refused() -> None:
    with pytest.raises(UserInputError, match=r"one key at a time, not train, model\."):
        explain_recipe(TINY, ["train", "model"], [])


def test_a_recipe_that_would_be_refused_is_explained_all_the_same() -> None:
    text, refusal = explain_recipe(TINY, ["train.seq_len=1024", "train.seq_len"], [])
    assert text == "train.seq_len: 1024  # override train.seq_len=1024"
    assert isinstance(refusal, RecipeError)
    assert [problem.path for problem in refusal.problems] == ["train.seq_len"]


def test_the_command_prints_the_explanation_then_the_refusal(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["moeframe", "explain", str(TINY), "train.seq_len", "train.seq_len=1024"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == "train.seq_len: 1024  # override train.seq_len=1024\n"
    assert streams.err.startswith("error: train.seq_len=1024: train.seq_len: given 1024; must not exceed")


def test_values_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(RecipeError, match="given 'many'"):
        explain_recipe(TINY, ["train.steps=many"], [])
