"""What the API check runs to see that old names work: `loader` and `caller` of `[tool.moeframe_compat]`.

Runs in a process of its own that imports the tree under test, with torch stubbed.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

RECIPE: dict[str, dict[str, Any]] = {
    "model": {
        "vocab_size": 256,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "first_k_dense_replace": 1,
        "intermediate_size": 32,
        "moe_intermediate_size": 8,
        "n_routed_experts": 8,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "num_attention_heads": 2,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "max_position_embeddings": 64,
    },
    "dispatcher": {"name": "local"},
    "sharding": {"name": "replicate"},
    "schedule": {"name": "accumulate"},
    "compute": {"name": "torch"},
    "data": {"name": "synthetic"},
    "optimizer": {"lr": 1.0},
    "train": {"steps": 1, "seq_len": 32, "global_batch_size": 4, "micro_batch_size": 2},
}
"""Small, because it is loaded some fifty times."""


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what further keys resolve to: in a file that another one extends, and as overrides.

    Raises:
        Exception: every way refuses them; the refusal of one alone is a result, and differs from the others'.
    """
    with tempfile.TemporaryDirectory(prefix="moeframe-ledger-") as folder:
        plain, mine, over = (Path(folder, name) for name in ("plain.yaml", "mine.yaml", "over.yaml"))
        _write(plain, {})
        _write(mine, config)
        over.write_text("extends: [mine.yaml]\n", encoding="utf-8")
        overrides = [
            f"{section}.{key}={json.dumps(value)}" for section, keys in config.items() for key, value in keys.items()
        ]
        ways = {"file": (over, []), "override": (plain, overrides)}
        results = {way: _load(*arguments) for way, arguments in ways.items()}
    recipes = {way: recipe for way, (recipe, _) in results.items()}
    if all(isinstance(recipe, Exception) for recipe in recipes.values()):
        raise next(recipe for recipe in recipes.values() if isinstance(recipe, Exception))
    told = {len(messages) for _, messages in results.values()}
    for message in results["file"][1] if len(told) == 1 else ():  # no warning at all where the ways differ
        warnings.warn(message, stacklevel=2)
    return recipes


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a callable makes of keywords."""
    _new_process()
    return CALLS[name](arguments)


def _write(path: Path, config: Mapping[str, Any]) -> None:
    """Write the recipe with further keys."""
    sections = {section: {**RECIPE.get(section, {}), **config.get(section, {})} for section in {**RECIPE, **config}}
    # JSON is YAML.
    path.write_text(json.dumps({"schema_version": 1, "name": "trial", **sections}), encoding="utf-8")


def _load(path: Path, overrides: list[str]) -> tuple[dict[str, Any] | Exception, list[Warning]]:
    """Return a recipe, or why it is refused, and the warnings about it."""
    from moeframe.config.load import load_recipe
    from moeframe.errors import RecipeError

    _new_process()
    recipe: dict[str, Any] | Exception
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            recipe = asdict(load_recipe(path, overrides).recipe)
        except RecipeError as refusal:
            recipe = refusal
    return recipe, [warning.message for warning in caught if isinstance(warning.message, Warning)]


def _new_process() -> None:
    """Warn again of what was told before."""
    from moeframe.config.ledger import forget_what_was_told

    forget_what_was_told()


class _ReachedError(Exception):
    """Carries the recipe that `assemble` is about to compose."""


def _assemble(arguments: Mapping[str, Any]) -> dict[str, Any]:
    assembly = importlib.import_module("moeframe.train.assemble")

    def compose(loaded: Any, *_: Any, **__: Any) -> None:
        raise _ReachedError(asdict(loaded.recipe))

    before = ("build_plugin_manager", "this_process", "choose_device", "Catalog")
    with patch.multiple(assembly, compose=compose, **dict.fromkeys(before, _anything)):
        try:
            assembly.assemble(_plain(), **arguments)
        except _ReachedError as reached:
            recipe: dict[str, Any] = reached.args[0]
            return recipe
    raise AssertionError("assemble composed nothing")


@cache
def _plain() -> Any:
    """Return the recipe as it is."""
    from moeframe.config.load import load_recipe

    with tempfile.TemporaryDirectory(prefix="moeframe-ledger-") as folder:
        _write(Path(folder, "plain.yaml"), {})
        return load_recipe(Path(folder, "plain.yaml"))


def _anything(*_: Any, **__: Any) -> Any:
    class Anything:
        world_size = 1
        type = "cpu"

    return Anything()


def _dispatcher_config(arguments: Mapping[str, Any]) -> dict[str, Any]:
    from moeframe.config.schema import DispatcherConfig

    return asdict(DispatcherConfig(name="alltoall", **arguments))


CALLS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "moeframe.assemble": _assemble,
    "moeframe.config.schema.DispatcherConfig": _dispatcher_config,
}
