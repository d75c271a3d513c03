"""What the API check runs to see that old names work: `loader`, `caller` and `restorer` of `[tool.moeframe_compat]`.

Runs in a process of its own that imports the tree under test, with torch stubbed.
"""

from __future__ import annotations

import importlib
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

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


def from_file(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what further keys resolve to in a file that another one extends."""
    with _folder() as folder:
        _write(folder / "mine.yaml", config)
        (folder / "over.yaml").write_text("extends: [mine.yaml]\n", encoding="utf-8")
        return _load(folder / "over.yaml", [])


def from_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what further keys resolve to as overrides."""
    with _folder() as folder:
        _write(folder / "plain.yaml", {})
        return _load(folder / "plain.yaml", _overrides(config))


def from_command_line(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what further keys resolve to as arguments of a command."""
    from moeframe.cli.app import app

    check = importlib.import_module("moeframe.cli.check")
    _new_process()
    with _folder() as folder, _replaced(check, compose=_reach, build_plugin_manager=_anything, Catalog=_anything):
        _write(folder / "plain.yaml", {})
        try:
            app(["check", str(folder / "plain.yaml"), *_overrides(config)], standalone_mode=False)
        except _ReachedError as reached:
            recipe: dict[str, Any] = reached.args[0]
            return recipe
    raise AssertionError("the command composed nothing")


def from_saved_run(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what further keys resolve to in the recipe that a run has saved, and in what its checkpoints say of it."""
    from moeframe.checkpoint_names import recipe_section
    from moeframe.train.run_directory import RunDirectory

    with _folder() as folder:
        saved = RunDirectory(folder)
        _write(saved.recipe_file, config)
        recipe = _load(saved.recipe_file, [])
    with warnings.catch_warnings():  # the recipe has told already
        warnings.simplefilter("ignore")
        sections = {section: recipe_section(section, keys) for section, keys in config.items()}
    return {"recipe": recipe, "checkpoint": sections}


def restore(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of a checkpoint by the names of today."""
    from moeframe.checkpoint_names import translate

    _new_process()
    return translate(saved)


def call(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a callable makes of keywords."""
    _new_process()
    return CALLS[name](arguments)


def _write(path: Path, config: Mapping[str, Any]) -> None:
    """Write the recipe with further keys."""
    sections = {section: {**RECIPE.get(section, {}), **config.get(section, {})} for section in {**RECIPE, **config}}
    # JSON is YAML.
    path.write_text(json.dumps({"schema_version": 1, "name": "trial", **sections}), encoding="utf-8")


def _overrides(config: Mapping[str, Any]) -> list[str]:
    return [f"{section}.{key}={json.dumps(value)}" for section, keys in config.items() for key, value in keys.items()]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="moeframe-ledger-") as folder:
        yield Path(folder)


def _load(path: Path, overrides: list[str]) -> dict[str, Any]:
    from moeframe.config.load import load_recipe

    _new_process()
    return asdict(load_recipe(path, overrides).recipe)


@contextmanager
def _replaced(module: Any, **names: Any) -> Iterator[None]:
    """Put others in place of what a module holds, for a while; `unittest.mock` takes longer to import than all this."""
    before = {name: getattr(module, name) for name in names}
    vars(module).update(names)
    try:
        yield
    finally:
        vars(module).update(before)


def _new_process() -> None:
    """Warn again of what was told before."""
    from moeframe.config.ledger import forget_what_was_told

    forget_what_was_told()


class _ReachedError(Exception):
    """Carries the recipe that `assemble` is about to compose."""


def _reach(loaded: Any, *_: Any, **__: Any) -> None:
    """Stand in for `compose`."""
    from moeframe.errors import RecipeError

    if loaded.problems:
        raise RecipeError(loaded.problems)
    raise _ReachedError(asdict(loaded.recipe))


def _assemble(arguments: Mapping[str, Any]) -> dict[str, Any]:
    assembly = importlib.import_module("moeframe.train.assemble")
    before = ("build_plugin_manager", "this_process", "choose_device", "Catalog")
    with _replaced(assembly, compose=_reach, **dict.fromkeys(before, _anything)):
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
