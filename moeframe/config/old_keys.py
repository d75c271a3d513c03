"""Old recipe keys go on working for their window: each file, and the overrides, are translated before they are merged.

Every layer is translated by itself, so that the order of layers decides between them as ever: an old key in a recipe
wins over the new one in its base. Within one layer, both together must be equal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from moeframe.config.ledger import Change, changes, tell
from moeframe.config.scalars import kind_of
from moeframe.config.tree import Expression, Leaf, Origin, Tree, join
from moeframe.config.yaml_source import Document
from moeframe.errors import Location, Problem

__all__ = ["OldKeys", "reference_to"]

Setting = tuple[str, Document]


def reference_to(key: str) -> re.Pattern[str]:
    """Return the pattern of ``${key}`` and ``${key.below}``; its group is what comes after the key."""
    return re.compile(r"\$\{" + re.escape(key) + r"((?:\.\w+)*)\}")


class OldKeys:
    """Translates the layers of one recipe; `problems` holds what cannot be."""

    def __init__(self) -> None:
        """Start with nothing found."""
        self.problems: list[Problem] = []
        self._found: dict[Change, list[Location]] = {}
        self._changes = [change for change in changes("config") if change.kind != "default"]

    def translate_file(self, document: Document) -> None:
        """Rename the old keys of a file in place."""
        assert isinstance(document.tree, dict)
        for change in self._changes:
            value = _find(document.tree, change.old)
            if value is None:
                continue
            place = _place(document, change.old)
            if self._works(change, place, value):
                _take(document.tree, change.old)
                self._put(document, change, value)
        document.tree = self._renamed_references(document.tree)

    def translate_overrides(self, settings: Iterable[Setting]) -> list[Setting]:
        """Return the overrides with new keys; those without an old one stay as they are."""
        made: list[Setting] = []
        given: dict[str, list[tuple[Tree, Location | None, bool]]] = {}
        for key, document in settings:
            made += self._translated(key, document, given) if not document.problems else [(key, document)]
        for change in self._changes:
            self._require_agreement(change, given.get(change.new, []))
        return made

    def tell(self, files: Iterable[str | Path]) -> None:
        """Warn of what was found; `files` are those of the recipe."""
        written = {str(file) for file in files}
        for change, places in self._found.items():
            names = list(dict.fromkeys(place.file for place in places if place.file in written))
            advice = f"`moeframe migrate {' '.join(names)}` rewrites it." if names else f"Write {change.new}."
            tell(change, places, advice if change.new else "")

    def _works(self, change: Change, place: Location | None, value: Tree) -> bool:
        """Note an old key, and return whether it is to be translated."""
        if change.is_over:
            fix = f"Write {change.new}: `moeframe migrate` does it." if change.new else "Remove the key."
            message = f"given {_spoken(value)}, but {change.refusal}"
            self.problems.append(Problem(path=change.old, message=message, fix=fix, where=place))
            return bool(change.new)
        if place is not None:
            self._found.setdefault(change, []).append(place)
        return bool(change.new)

    def _put(self, document: Document, change: Change, value: Tree) -> None:
        """Put a value where the new key stands, unless that is given too."""
        assert isinstance(document.tree, dict)
        place, present = _place(document, change.old), _find(document.tree, change.new)
        mapped = _renamed(value, change)
        if present is not None:
            if not _equal(mapped, present):
                self._contradiction(change, value, place, present, _place(document, change.new))
            return
        _insert(document.tree, change.new, mapped)
        for key, origin in list(document.key_places.items()):
            if key == change.old or key.startswith(f"{change.old}."):
                document.key_places.setdefault(change.new + key.removeprefix(change.old), origin)
                del document.key_places[key]

    def _translated(
        self, key: str, document: Document, given: dict[str, list[tuple[Tree, Location | None, bool]]]
    ) -> list[Setting]:
        """Return what one override sets, in new keys, and note under each new key what it is given."""
        made: list[Setting] = []
        document.tree = self._renamed_references(document.tree)
        origin = document.key_places[key]
        for change in self._changes:
            if (inside := _below(change.new, key)) is not None and (
                present := _find(document.tree, inside)
            ) is not None:
                given.setdefault(change.new, []).append((present, origin.where, False))
            if (deeper := _below(key, change.old)) is not None:
                if self._works(change, origin.where, document.tree):
                    value = _renamed(document.tree, change)
                    key = join(change.new, deeper) if deeper else change.new
                    document = Document(value, _places_of(key, origin))
                    if not deeper:
                        given.setdefault(change.new, []).append((value, origin.where, True))
            elif (inside := _below(change.old, key)) is not None and isinstance(document.tree, dict):
                value_inside = _find(document.tree, inside)
                if value_inside is None or not self._works(change, origin.where, value_inside):
                    continue
                _take(document.tree, inside)
                value = _renamed(value_inside, change)
                given.setdefault(change.new, []).append((value, origin.where, True))
                made.append((change.new, Document(value, _places_of(change.new, origin))))
        return [(key, document), *made]

    def _require_agreement(self, change: Change, given: list[tuple[Tree, Location | None, bool]]) -> None:
        """Complain when overrides set a key by both names, to different values."""
        new = [(value, place) for value, place, is_old in given if not is_old]
        for value, place, is_old in given:
            if is_old and new and not _equal(value, new[-1][0]):
                self._contradiction(change, value, place, *new[-1])
                return

    def _contradiction(
        self, change: Change, value: Tree, place: Location | None, other: Tree, other_place: Location | None
    ) -> None:
        """Complain of both names with different values."""
        message = (
            f"given {_spoken(value)}, and {change.new}, which is its name since {change.since}, is {_spoken(other)} "
            f"({other_place})."
        )
        fix = f"Keep {change.new} only."
        self.problems.append(Problem(path=change.old, message=message, fix=fix, where=place))

    def _renamed_references(self, tree: Tree) -> Tree:
        """Return the tree with ``${old.key}`` renamed; values that are called otherwise now cannot be looked up."""
        if isinstance(tree, dict):
            return {key: self._renamed_references(value) for key, value in tree.items()}
        if isinstance(tree, list):
            return [self._renamed_references(value) for value in tree]
        if not isinstance(tree, Expression):
            return tree
        text = str(tree)
        for change in self._changes:
            pattern = reference_to(change.old)
            if pattern.search(text) and not change.value_map and self._works(change, tree.origin.where, tree):
                text = pattern.sub(lambda found, change=change: f"${{{change.new}{found[1]}}}", text)  # type: ignore[misc]
        return tree if text == str(tree) else Expression.of(Leaf(text, quoted=tree.quoted, origin=tree.origin))


def _below(path: str, root: str) -> str | None:
    """Return the rest of a path below `root`, "" for the root itself, None for a path elsewhere."""
    if path == root:
        return ""
    return path.removeprefix(f"{root}.") if path.startswith(f"{root}.") else None


def _find(tree: Tree, path: str) -> Tree | None:
    """Return what stands at a dotted path ("" is the tree)."""
    for key in path.split(".") if path else ():
        if not isinstance(tree, dict) or key not in tree:
            return None
        tree = tree[key]
    return tree


def _take(tree: Tree, path: str) -> None:
    """Remove what stands at a dotted path."""
    section, _, key = path.rpartition(".")
    owner = _find(tree, section)
    assert isinstance(owner, dict)
    del owner[key]


def _insert(tree: dict[str, Tree], path: str, value: Tree) -> None:
    """Put a value at a dotted path, making the sections above it."""
    *sections, key = path.split(".")
    for section in sections:
        inner = tree.setdefault(section, {})
        if not isinstance(inner, dict):
            return  # the section itself is wrong, and typing says so
        tree = inner
    tree[key] = value


def _place(document: Document, path: str) -> Location | None:
    """Return where a key stands."""
    origin = document.key_places.get(path)
    return origin.where if origin is not None else None


def _places_of(key: str, origin: Origin) -> dict[str, Origin]:
    """Return the places of a key and of the sections above it, which are all one override."""
    parts = key.split(".")
    return {".".join(parts[:depth]): origin for depth in range(1, len(parts) + 1)}


def _renamed(tree: Tree, change: Change) -> Tree:
    """Return what was given by an old name: its values renamed, their story told."""
    if isinstance(tree, dict):
        return {key: _renamed(value, change) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(value, change) for value in tree]
    origin = replace(tree.origin, note=f"written as {change.old}, its name before {change.since}")
    if isinstance(tree, Expression):
        return Expression.of(Leaf(str(tree), quoted=tree.quoted, origin=origin))
    text = _text(tree)
    if text in change.value_map:
        return Leaf.of(change.value_map[text], origin)
    return Leaf(tree.text, quoted=tree.quoted, origin=origin)


def _text(leaf: Leaf) -> str:
    """Return a scalar in its usual spelling."""
    kind = kind_of(leaf)
    return "null" if kind == "null" else leaf.text.lower() if kind == "bool" else leaf.text


def _equal(one: Tree, other: Tree) -> bool:
    """Return whether two trees say the same."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Expression) or isinstance(other, Expression):
        return isinstance(one, Expression) and isinstance(other, Expression) and str(one) == str(other)
    if isinstance(one, Leaf) and isinstance(other, Leaf):
        return _text(one) == _text(other) and (kind_of(one) == "text") == (kind_of(other) == "text")
    return False


def _spoken(tree: Tree) -> str:
    """Return a value for a message."""
    if isinstance(tree, dict | list):
        return "a mapping" if isinstance(tree, dict) else "a list"
    return str(tree) or "nothing"
