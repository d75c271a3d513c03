"""What the API check runs to see that old names work: `loader` and `caller` of `[tool.moeframe_compat]`.

Runs in a process of its own that imports the tree under test, with torch stubbed.
"""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


def resolve(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what keys over the quickstart resolve to: in a file, in a base that it extends, and as overrides.

    Raises:
        Exception: every way refuses them; the refusal of one alone is a result, and differs from the others'.
    """
    with tempfile.TemporaryDirectory(prefix="moeframe-ledger-") as folder:
        mine, over = Path(folder, "mine.yaml"), Path(folder, "over.yaml")
        # JSON is YAML.
        mine.write_text(json.dumps({"extends": [os.path.relpath(QUICKSTART, folder)], **config}), encoding="utf-8")
        over.write_text("extends: [mine.yaml]\n", encoding="utf-8")
        overrides = [
            f"{section}.{key}={json.dumps(value)}" for section, keys in config.items() for key, value in keys.items()
        ]
        ways = {"file": (mine, []), "base": (over, []), "override": (QUICKSTART, overrides)}
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
            assembly.assemble(QUICKSTART, **arguments)
        except _ReachedError as reached:
            recipe: dict[str, Any] = reached.args[0]
            return recipe
    raise AssertionError("assemble composed nothing")


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
