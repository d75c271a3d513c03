"""Names in syntax trees."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator

_PLAIN = frozenset(
    {
        *("arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "kwd_attrs", "level", "lineno"),
        *("module", "name", "names", "op", "ops", "rest", "simple", "tag", "type_comment"),
    }
)
"""Fields of syntax nodes that hold no expression and no statement."""
_INNER: dict[type, tuple[str, ...]] = {ast.Constant: ()}


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` for a chain of names and attributes, None for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


def inner(node: ast.AST) -> list[ast.AST]:
    """The expressions and statements right inside a node, in their order; no operators, contexts or aliases."""
    kind = type(node)
    fields = _INNER.get(kind)
    if fields is None:
        fields = _INNER[kind] = tuple(f for f in kind._fields if f not in _PLAIN)
    found: list[ast.AST] = []
    for name in fields:
        value = getattr(node, name, None)
        if type(value) is list:
            found += value
        elif isinstance(value, ast.AST):
            found.append(value)
    return [n for n in found if n is not None] if kind is ast.Dict or kind is ast.arguments else found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all below it, level by level, as `ast.walk` but for what `inner` leaves out."""
    todo = deque((node,))
    while todo:
        node = todo.popleft()
        todo.extend(inner(node))
        yield node
