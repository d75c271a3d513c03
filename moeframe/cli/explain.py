"""`moeframe explain`: the resolved recipe and the origin of each value."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeframe.config.compose import compose
from moeframe.config.explain import explain
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError, UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

__all__ = ["explain_recipe"]


def explain_recipe(recipe: Path, arguments: Sequence[str], plugins: Sequence[str]) -> tuple[str, RecipeError | None]:
    """Return the explanation, and why the recipe would be refused although every value has its type.

    Args:
        recipe: the recipe file.
        arguments: overrides, and at most one key (an argument without ``=``).
        plugins: modules of plugins that are not installed.

    Raises:
        RecipeError: a value could not be read.
        UserInputError: more than one key, or one that does not exist.
        PluginError: a module of `plugins` is broken.
    """
    keys = [argument for argument in arguments if "=" not in argument]
    if len(keys) > 1:
        raise UserInputError(f"one key at a time, not {', '.join(keys)}. Name a section to see all of it.")
    loaded = load_recipe(recipe, [argument for argument in arguments if "=" in argument])
    host = build_plugin_manager(plugins, wanted=loaded.backends)
    key = keys[0] if keys else None
    try:
        composition = compose(loaded, Catalog(host))
    except RecipeError as refusal:
        return explain(loaded, None, key), refusal
    return explain(loaded, composition, key), None
