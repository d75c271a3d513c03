"""Bundled YAML files as dotted keys and values."""

from __future__ import annotations

from typing import Any

from moeframe_compat.model.surfaces import Recipe


def read_recipe(file: str, text: str) -> Recipe | None:
    """A bundled data file; None if it holds no mapping (templates and lists are not recipes)."""
    import yaml  # imported only when a package bundles YAML

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError:
        return None
    if not isinstance(data, dict):
        return None
    recipe = Recipe(file)
    _flatten(data, "", recipe.values)
    return recipe


def _flatten(data: dict[Any, Any], prefix: str, out: dict[str, Any]) -> None:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            _flatten(value, f"{name}.", out)
        else:
            out[name] = value if isinstance(value, (str, int, float, bool, type(None), list)) else str(value)
