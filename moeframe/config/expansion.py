"""What a tree becomes once its ``${section.key}`` are written out, counted without writing them out.

A few lines that refer to one another can stand for more than any machine holds; such are found unresolved.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from moeframe.config.tree import Expression, Leaf, Tree, join

__all__ = ["overgrown"]

_MOST_LOOKUPS: Final = 2_000
_MOST_CHARACTERS: Final = 2**20
_REFERENCE: Final = re.compile(r"\$\{([\w.]+)\}")


@dataclass(frozen=True, slots=True)
class _Size:
    """What expressions cost: keys looked up, and characters of the result."""

    lookups: int = 0
    characters: int = 0

    def __add__(self, other: _Size) -> _Size:
        return _Size(self.lookups + other.lookups, self.characters + other.characters)

    @property
    def too_much(self) -> bool:
        return self.lookups > _MOST_LOOKUPS or self.characters > _MOST_CHARACTERS


def overgrown(root: dict[str, Tree]) -> dict[str, Expression]:
    """Return, by path, the expressions of a tree with which it becomes too large; all others together do not."""
    sizes, found, total = _Sizes(root), {}, _Size()
    for path, node in _expressions(root, ""):
        size = sizes.of(node)
        if (total + size).too_much:
            found[path] = node
        else:
            total += size
    return found


def _expressions(tree: Tree, path: str) -> list[tuple[str, Expression]]:
    if isinstance(tree, Leaf | Expression):
        return [(path, tree)] if isinstance(tree, Expression) else []
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [one for key, value in entries for one in _expressions(value, join(path, key))]


class _Sizes:
    """Sizes of nodes, each computed once; a circle counts as nothing, since it is refused anyway."""

    def __init__(self, root: dict[str, Tree]) -> None:
        self._root = root
        self._known: dict[int, _Size] = {}

    def of(self, node: Tree) -> _Size:
        """Return the size of a node with all that it refers to."""
        if isinstance(node, Leaf):
            return _Size(characters=len(node.text) + 1)
        known = self._known.get(id(node))
        if known is None:
            self._known[id(node)] = known = _Size()
            if isinstance(node, Expression):
                paths = _REFERENCE.findall(node)
                known = _Size(lookups=len(paths), characters=len(node))
                inner = [self._at(path.split(".")) for path in paths]
            else:
                inner = list(node.values()) if isinstance(node, dict) else node
            for one in inner:
                known += self.of(one)
            self._known[id(node)] = known
        return known

    def _at(self, keys: list[str]) -> Tree:
        """Return what stands at a path, or the expression above it, or nothing."""
        node: Tree = self._root
        for key in keys:
            if isinstance(node, dict):
                node = node.get(key, {})
            elif isinstance(node, list):
                node = node[int(key)] if key.isdecimal() and int(key) < len(node) else []
        return node
