from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from moeframe import assemble, load_recipe
from moeframe.config.ledger import forget_what_was_told
from moeframe.errors import MoeframeDeprecationWarning, RecipeError

ROOT = Path(__file__).parents[2]
SAVED = ROOT / "tests" / "data" / "recipe_of_0.1.0.yaml"
TINY = ROOT / "recipes" / "deepseek_v3" / "tiny.yaml"


def test_a_recipe_that_0_1_0_saved_trains_and_is_migrated(moeframe) -> None:
    shutil.copy(SAVED, moeframe.cwd / "recipe.yaml")
    ended = moeframe("run", "recipe.yaml", timeout=400)
    assert ended.code == 0, ended.err
    assert ended.err.count("warning: recipe.yaml:") == 1  # the launcher tells, its process does not
    assert [record["step"] for record in ended.metrics] == [1, 2]
    assert load_recipe(ended.run_dir / "recipe.yaml").recipe.dispatcher.use_flex_dispatcher is False
    assert moeframe("migrate", "recipe.yaml").code == 0
    assert moeframe("check", "recipe.yaml").err == ""


def test_assemble_takes_the_old_parameter() -> None:
    forget_what_was_told()
    with (
        pytest.warns(MoeframeDeprecationWarning, match=r"moeframe.assemble\(enable_deepep\)") as seen,
        pytest.raises(RecipeError, match="use_flex_dispatcher: given true, which demands"),
    ):
        assemble(TINY, enable_deepep=True)
    assert [Path(warning.filename).name for warning in seen] == ["test_renames.py"]
    with pytest.raises(TypeError, match="contradict each other"):
        assemble(TINY, enable_deepep=True, use_flex_dispatcher=False)
