"""Which names a module binds at its top level, read from its source without running it."""

from __future__ import annotations

import ast
from importlib.machinery import SourceFileLoader
from pathlib import Path

from moeframe.hooks.entry_points import locate_module

__all__ = ["top_level_names"]


def top_level_names(module: str) -> frozenset[str] | None:
    """Return the names that the source of a module imports, defines or assigns, also inside of ``if`` and ``try``.

    Args:
        module: its dotted name; nothing is imported.

    Returns:
        The names; None when there is no such module, or its source cannot be read or ends in ``import *``.
    """
    spec = locate_module(module)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return None
    try:
        tree = ast.parse(Path(spec.loader.path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    names = frozenset(_bound(tree.body))
    return None if "*" in names else names


def _bound(statements: list[ast.stmt]) -> list[str]:
    """Return the names that statements of one scope bind."""
    names: list[str] = []
    for statement in statements:
        match statement:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names += [alias.asname or alias.name.partition(".")[0] for alias in aliases]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.append(name)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                names += [
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                ]
            case ast.If() | ast.Try() | ast.With():
                inner = [*statement.body, *getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ())]
                inner += [one for handler in getattr(statement, "handlers", ()) for one in handler.body]
                names += _bound(inner)
            case _:
                continue
    return names
