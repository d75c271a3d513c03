"""Names in syntax trees."""

from __future__ import annotations

import ast


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
