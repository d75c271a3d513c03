"""Layers become one tree: defaults, base recipes, the recipe itself, overrides; OmegaConf resolves it.

OmegaConf takes a tenth of a second to import: only a recipe that holds ``${section.key}`` pays for it.
Mappings merge key by key, everything else (lists too) is replaced by the later layer. `options` belong to the backend
that their section names: a later layer that names another one starts with no options. An override may reach into a list
(``optimizer.betas.0=0.8``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from moeframe.config.expansion import overgrown
from moeframe.config.tree import Expression, Leaf, Tree, join
from moeframe.errors import Location, Problem

__all__ = ["Merger"]

_FLAGS: Final = {"allow_objects": True}
TreeT = TypeVar("TreeT", bound=Tree)


class Merger:
    """Collects layers from the lowest to the highest, then resolves ``${section.key}``."""

    def __init__(self, defaults: dict[str, Tree]) -> None:
        """Start from the lowest layer."""
        self._tree: dict[str, Tree] = _copied(defaults)
        self.problems: list[Problem] = []
        self._overgrown: Mapping[str, Expression] = {}

    def add(self, tree: Mapping[str, Tree]) -> None:
        """Lay a recipe file over what there is."""
        self._drop_options({section: _name_in(body) for section, body in tree.items()})
        self._lay(self._tree, tree, ())

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
        if not _interpolates(self._tree):
            return self._tree
        self._overgrown = overgrown(self._tree)
        for path, expression in list(self._overgrown.items())[:1]:
            message = f"{str(expression)[:80]!r} stands for more than a recipe may hold, through other references."
            where = expression.origin.where
            self.problems.append(Problem(path=path, message=message, fix="Write the value.", where=where))
        made = self._resolve(self._tree, self._omega_config(), "")
        assert isinstance(made, dict)
        return made

    def _omega_config(self) -> Any:
        """Return what there is as OmegaConf sees it."""
        from omegaconf import OmegaConf

        return OmegaConf.create(self._tree, flags=_FLAGS)

    def _drop_options(self, names: Mapping[str, Any]) -> None:
        """Empty the options of each section whose backend is about to change."""
        for section, name in names.items():
            if name is None or "." in section:
                continue
            body = self._mapping_at((section,), self._tree.get(section))
            if body is not None and "options" in body and "name" in body and str(body["name"]) != str(name):
                self._tree[section] = {**body, "options": {}}

    def _override(self, key: str, value: Tree) -> None:
        """Lay one override over the tree."""
        parts = key.split(".")
        at: Tree = self._tree
        for depth, part in enumerate(parts):
            if isinstance(at, list):
                self._override_list(key, ".".join(parts[:depth]), at, part, value, parts[depth + 1 :])
                return
            if not isinstance(at, dict) or part not in at:
                break
            at = at[part]
        nested = value
        for part in reversed(parts):
            nested = {part: nested}
        assert isinstance(nested, dict)
        self._lay(self._tree, nested, ())

    def _lay(self, under: dict[str, Tree], over: Mapping[str, Tree], path: tuple[str, ...]) -> None:
        """Merge a tree over the mapping at a path."""
        for key, value in over.items():
            here = (*path, key)
            body = self._mapping_at(here, under.get(key)) if isinstance(value, dict) else None
            if body is None:
                under[key] = _copied(value)
            else:
                assert isinstance(value, dict)
                under[key] = body
                self._lay(body, value, here)

    def _mapping_at(self, path: tuple[str, ...], body: Tree | None) -> dict[str, Tree] | None:
        """Return the mapping at a path, a copy of the one that its expression stands for, or None."""
        if not isinstance(body, Expression):
            return body if isinstance(body, dict) else None
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        found = self._omega_config()
        try:
            for key in path:
                found = found[key]
        except (OmegaConfBaseException, RecursionError):
            return None  # `resolved` says why, unless the layer that is being laid replaces it
        made = OmegaConf.to_container(found, resolve=False) if OmegaConf.is_dict(found) else None
        return cast("dict[str, Tree] | None", made)

    def _override_list(
        self, key: str, path: str, entries: list[Tree], index: str, value: Tree, rest: list[str]
    ) -> None:
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
        from omegaconf import OmegaConf

        return self._resolve(OmegaConf.to_container(found, resolve=False), found, path)


def _copied(tree: TreeT) -> TreeT:
    """Return a copy of the mappings and lists of a tree; leaves are never changed."""
    if isinstance(tree, dict):
        return cast("TreeT", {key: _copied(value) for key, value in tree.items()})
    return cast("TreeT", [_copied(value) for value in tree]) if isinstance(tree, list) else tree


def _interpolates(tree: Tree) -> bool:
    """Return whether an expression stands anywhere in a tree."""
    if isinstance(tree, dict | list):
        return any(map(_interpolates, tree.values() if isinstance(tree, dict) else tree))
    return isinstance(tree, Expression)


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
