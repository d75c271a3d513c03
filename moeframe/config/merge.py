"""Layers become one tree: defaults, base recipes, the recipe itself, overrides. The only user of OmegaConf.

Mappings merge key by key, everything else (lists too) is replaced by the later layer. `options` belong to the backend
that their section names: a later layer that names another one starts with no options. An override may reach into a list
(``optimizer.betas.0=0.8``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from moeframe.config.expansion import overgrown
from moeframe.config.tree import Expression, Leaf, Tree, join
from moeframe.errors import Location, Problem

__all__ = ["Merger"]

_FLAGS: Final = {"allow_objects": True}


class Merger:
    """Collects layers from the lowest to the highest, then resolves ``${section.key}``."""

    def __init__(self, defaults: dict[str, Tree]) -> None:
        """Start from the lowest layer."""
        # OmegaConf takes a tenth of a second to import: only commands that load a recipe pay for it.
        from omegaconf import OmegaConf

        self._omega = OmegaConf
        self._config: Any = OmegaConf.create(defaults, flags=_FLAGS)
        self.problems: list[Problem] = []
        self._overgrown: Mapping[str, Expression] = {}

    def add(self, tree: Mapping[str, Tree]) -> None:
        """Lay a recipe file over what there is."""
        self._drop_options({section: _name_in(body) for section, body in tree.items()})
        self._lay(dict(tree))

    def override(self, values: Iterable[tuple[str, Tree]]) -> None:
        """Lay overrides over what there is, in their order; together they are one layer."""
        values = list(values)
        named = {key.removesuffix(".name"): value for key, value in values if key.endswith(".name")}
        named |= {key: name for key, value in values if (name := _name_in(value)) is not None}
        self._drop_options(named)
        for key, value in values:
            self._override(key, value)

    def resolved(self) -> dict[str, Tree]:
        """Return the merged tree with every interpolation replaced by the leaf it points at.

        What cannot be resolved is left out, and stands in `problems`.
        """
        tree = self._omega.to_container(self._config, resolve=False)
        assert isinstance(tree, dict)
        self._overgrown = overgrown(cast("dict[str, Tree]", tree))
        for path, expression in list(self._overgrown.items())[:1]:
            message = f"{str(expression)[:80]!r} stands for more than a recipe may hold, through other references."
            where = expression.origin.where
            self.problems.append(Problem(path=path, message=message, fix="Write the value.", where=where))
        made = self._resolve(tree, self._config, "")
        assert isinstance(made, dict)
        return made

    def _drop_options(self, names: Mapping[str, Any]) -> None:
        """Empty the options of each section whose backend is about to change."""
        for section, name in names.items():
            body: Any = self._config.get(section) if "." not in section and section in self._config else None
            if name is None or not self._omega.is_dict(body) or "options" not in body:
                continue
            present = self._omega.to_container(body, resolve=False)
            assert isinstance(present, dict)
            if "name" in present and str(present["name"]) != str(name):
                body["options"] = {}

    def _override(self, key: str, value: Tree) -> None:
        """Lay one override over the tree."""
        parts = key.split(".")
        config = self._config
        for depth, part in enumerate(parts):
            if self._omega.is_list(config):
                self._override_list(key, ".".join(parts[:depth]), config, part, value, parts[depth + 1 :])
                return
            if not self._omega.is_dict(config) or part not in config or self._omega.is_interpolation(config, part):
                break
            config = config[part]
        nested: Any = value
        for part in reversed(parts):
            nested = {part: nested}
        self._lay(nested)

    def _lay(self, tree: dict[str, Tree]) -> None:
        """Merge a tree over what there is."""
        self._make_room(self._config, tree)
        self._config = self._omega.merge(self._config, self._omega.create(tree, flags=_FLAGS))

    def _make_room(self, config: Any, tree: dict[str, Tree]) -> None:
        """Remove lists that mappings replace, and the reverse: OmegaConf raises on them, and typing must speak."""
        for key, value in tree.items():
            if isinstance(value, Leaf | Expression) or key not in config or self._omega.is_interpolation(config, key):
                continue
            present = config[key]
            if isinstance(value, dict) and self._omega.is_dict(present):
                self._make_room(present, value)
            elif self._omega.is_config(present) and not (isinstance(value, list) and self._omega.is_list(present)):
                del config[key]

    def _override_list(self, key: str, path: str, entries: Any, index: str, value: Tree, rest: list[str]) -> None:
        """Replace one entry of a list."""
        if rest or not index.isdecimal() or int(index) >= len(entries):
            message = f"{path} is a list of {len(entries)} entries, and {key!r} names none of them."
            legal = ", ".join(f"{path}.{position}" for position in range(len(entries)))
            fix = f"Legal: {legal}; or replace the whole list: {path}=[...]." if legal else f"Use {path}=[...]."
            self.problems.append(Problem(path=key, message=message, fix=fix, where=_place(value)))
            return
        entries[int(index)] = value

    def _resolve(self, tree: Any, config: Any, path: str) -> Tree:
        """Return the resolved copy of a tree; `config` is the same node inside OmegaConf."""
        if isinstance(tree, dict):
            return {
                key: made
                for key, value in tree.items()
                if (made := self._entry(value, config, key, join(path, key))) is not None
            }
        assert isinstance(tree, list)
        entries = (self._entry(value, config, index, join(path, index)) for index, value in enumerate(tree))
        return [made for made in entries if made is not None]

    def _entry(self, value: Any, config: Any, key: Any, path: str) -> Tree | None:
        """Return one resolved entry, None when it cannot be resolved."""
        if isinstance(value, Leaf):
            return value
        if path in self._overgrown:
            return None
        if not isinstance(value, Expression):
            return self._resolve(value, config[key], path)
        from omegaconf.errors import OmegaConfBaseException

        try:
            return self._settled(config[key], value, path)
        except (OmegaConfBaseException, RecursionError) as error:
            self.problems.append(_unresolved(value, path, error))
        return None

    def _settled(self, found: Any, expression: Expression, path: str) -> Tree:
        """Return what an expression stands for, as if it had been written in the expression's place."""
        origin = replace(expression.origin, expression=str(expression))
        if isinstance(found, Leaf):
            return Leaf(found.text, quoted=found.quoted, origin=origin)
        if isinstance(found, str):
            return Leaf(str(found), quoted=expression.quoted, origin=origin)
        return self._resolve(self._omega.to_container(found, resolve=False), found, path)


def _name_in(body: Tree) -> Tree | None:
    """Return the name that a section gives."""
    return body.get("name") if isinstance(body, dict) else None


def _place(tree: Tree) -> Location | None:
    """Return where a tree stands: the place of its first leaf."""
    if isinstance(tree, dict):
        return next((_place(value) for value in tree.values()), None)
    if isinstance(tree, list):
        return next((_place(value) for value in tree), None)
    return tree.origin.where


def _unresolved(expression: Expression, path: str, error: BaseException) -> Problem:
    """Return why an expression has no value."""
    reason = str(error).split("\n", 1)[0]
    if "ecursi" in reason:
        message, fix = f"{str(expression)!r} leads back to itself.", "Give one of the keys in the circle a value."
    elif reason.startswith("Interpolation key"):
        missing = reason.split("'")[1]
        message = f"{str(expression)!r} points at {missing!r}, which the recipe does not have."
        fix = "Correct the key inside ${...}, or give that key a value."
    else:
        message, fix = f"{str(expression)!r} cannot be resolved: {reason}.", "Write the value."
    return Problem(path=path, message=message, fix=fix, where=expression.origin.where)
