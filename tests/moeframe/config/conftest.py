"""Recipes in a folder of their own, which is the working directory, so that places are `r.yaml:3:5`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeframe.config.load import LoadedRecipe, load_recipe
from moeframe.errors import Problem, RecipeError

BASE = """\
schema_version: 1
name: base
model:
  vocab_size: 256
  hidden_size: 16
  num_hidden_layers: 2
  first_k_dense_replace: 1
  intermediate_size: 32
  moe_intermediate_size: 8
  n_routed_experts: 8
  num_experts_per_tok: 2
  n_shared_experts: 1
  num_attention_heads: 2
  q_lora_rank: 8
  kv_lora_rank: 8
  qk_nope_head_dim: 8
  qk_rope_head_dim: 4
  v_head_dim: 8
  max_position_embeddings: 64
dispatcher: {name: plain}
sharding: {name: whole}
schedule: {name: onebyone}
compute: {name: simple}
data: {name: bytes}
optimizer: {lr: 1e-3}
train: {steps: 10, seq_len: 32, global_batch_size: 8, micro_batch_size: 2}
"""


class Recipes:
    """Writes recipe files and loads them."""

    base = BASE

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, text: str, name: str = "r.yaml") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return Path(name)

    def over_base(self, text: str) -> Path:
        """Write `r.yaml`, which extends the base recipe; `text` starts on its line 2."""
        self.write(BASE, "base.yaml")
        return self.write(f"extends: base.yaml\n{text}")

    def load(self, text: str, *overrides: str) -> LoadedRecipe:
        return load_recipe(self.over_base(text), overrides)

    def problems(self, text: str, *overrides: str) -> tuple[Problem, ...]:
        """Return the problems of `text` over the base recipe."""
        with pytest.raises(RecipeError) as caught:
            self.load(text, *overrides)
        return caught.value.problems

    def lines(self, text: str, *overrides: str) -> list[str]:
        """Return the problems as they are printed."""
        return [str(problem) for problem in self.problems(text, *overrides)]

    def file_lines(self, text: str | bytes) -> list[str]:
        """Return the printed problems of a file that extends nothing."""
        path = self.folder / "r.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(RecipeError) as caught:
            load_recipe("r.yaml")
        return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipes:
    monkeypatch.chdir(tmp_path)
    return Recipes(tmp_path)


@pytest.fixture
def base(recipes: Recipes) -> Callable[..., LoadedRecipe]:
    """Return a function that loads the base recipe with overrides."""

    def load(*overrides: str) -> LoadedRecipe:
        return load_recipe(recipes.write(BASE, "base.yaml"), overrides)

    return load
