"""A recipe back to YAML, and its hash."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from moeframe.config.moot import moot_keys
from moeframe.config.scalars import kind_of
from moeframe.config.schema import Recipe
from moeframe.config.tree import DEFAULT, Leaf, join
from moeframe.config.typed import default_of

__all__ = ["dump_recipe", "recipe_hash", "scalar_text"]


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML that `load_recipe` reads back as an equal recipe.

    Every value is written out, defaults too, without `extends` and interpolations; only a key that another one makes
    moot is left out. `model.init_from` is absolute in a recipe that was loaded from a file.
    """
    moot = frozenset(moot_keys(recipe))
    return yaml.dump(_plain(recipe, "", moot), Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def recipe_hash(recipe: Recipe) -> str:
    """Return 64 hexadecimal digits that are equal for equal recipes."""
    import hashlib

    return hashlib.sha256(dump_recipe(recipe).encode()).hexdigest()


def scalar_text(value: Any) -> str:
    """Return a scalar, or a list or mapping of them, as one line of a recipe."""
    plain = _plain(value, "", frozenset())
    text: str = yaml.dump(plain, Dumper=_Dumper, default_flow_style=True, width=2**20, allow_unicode=True)
    return text.removesuffix("\n...\n").removesuffix("\n")


class _Dumper(yaml.SafeDumper):
    """Writes scalars as recipes read them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  PyYAML's signature
        """Write every value out."""
        return True


def _represent_str(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    """Quote what a recipe would not read as text."""
    ambiguous = kind_of(Leaf(value, quoted=False, origin=DEFAULT)) != "text" or value == "None"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if ambiguous else None)


def _represent_float(dumper: _Dumper, value: float) -> yaml.ScalarNode:
    """Write the shortest digits that read back as the same number."""
    text = Leaf.of(value).text
    # A YAML 1.1 reader takes 1e-06 for text: 1.0e-06 is a number to every reader.
    text = text.replace("e", ".0e", 1) if "e" in text and "." not in text else text
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(str, _represent_str)
_Dumper.add_representer(float, _represent_float)


def _plain(value: Any, path: str, moot: frozenset[str]) -> Any:
    """Return dataclasses, mappings and sequences as dicts and lists, without moot keys at their default."""
    if is_dataclass(value) and not isinstance(value, type):
        return {
            spec.name: _plain(entry, here, moot)
            for spec in fields(value)
            for here, entry in ((join(path, spec.name), getattr(value, spec.name)),)
            if here not in moot or entry != default_of(spec)
        }
    if isinstance(value, Mapping):
        return {key: _plain(entry, join(path, key), moot) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, join(path, index), moot) for index, entry in enumerate(value)]
    return value
