"""The statements that bind names in a module or class body, with the conditions they stand under."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_OPAQUE_BLOCKS = (ast.With, ast.AsyncWith, ast.For, ast.AsyncFor, ast.While)


@dataclass(slots=True)
class Scoped:
    """A statement; `branch` is "" when it always runs (as far as one can tell)."""

    node: ast.stmt
    branch: str
    type_checking: bool = False


def scoped_statements(body: list[ast.stmt], branch: str = "", *, typing: bool = False) -> Iterator[Scoped]:
    """Every statement of a body and of the blocks in it, but not of functions and classes in it."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _if(node, branch, typing=typing)
        elif isinstance(node, ast.Try):
            yield from _try(node, branch, typing=typing)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                inner = f"{branch}if {ast.unparse(node.subject)} is {ast.unparse(case.pattern)};"
                yield from scoped_statements(case.body, inner, typing=typing)
        elif isinstance(node, _OPAQUE_BLOCKS):
            yield from scoped_statements(node.body, branch, typing=typing)
        else:
            yield Scoped(node, branch, typing)


def _if(node: ast.If, branch: str, *, typing: bool) -> Iterator[Scoped]:
    name = ast.unparse(node.test)
    if name in ("TYPE_CHECKING", "typing.TYPE_CHECKING", "t.TYPE_CHECKING"):
        yield from scoped_statements(node.body, branch, typing=True)
        yield from scoped_statements(node.orelse, branch, typing=typing)
        return
    if name in ("not TYPE_CHECKING", "not typing.TYPE_CHECKING"):
        yield from scoped_statements(node.body, branch, typing=typing)
        yield from scoped_statements(node.orelse, branch, typing=True)
        return
    yield from scoped_statements(node.body, f"{branch}if {name};", typing=typing)
    yield from scoped_statements(node.orelse, f"{branch}if not {name};", typing=typing)


def _try(node: ast.Try, branch: str, *, typing: bool) -> Iterator[Scoped]:
    needs = sorted(_imported(node.body))
    guarded = any(_leaves(h.body) for h in node.handlers) is False and bool(needs)
    inner = f"{branch}import {', '.join(needs)};" if guarded else branch
    yield from scoped_statements([*node.body, *node.orelse], inner, typing=typing)
    for handler in node.handlers:
        yield from scoped_statements(handler.body, f"{branch}without {', '.join(needs)};", typing=typing)
    yield from scoped_statements(node.finalbody, branch, typing=typing)


def _imported(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (n.name for n in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def _leaves(body: list[ast.stmt]) -> bool:
    """Does a handler end by raising, so that nothing after it runs without the import?"""
    return bool(body) and isinstance(body[-1], ast.Raise)
