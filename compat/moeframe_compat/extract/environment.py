"""Environment variables that a module reads: `os.environ["X"]`, `.get("X")`, `os.getenv("X")`, `envvar="X"`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from moeframe_compat.extract.names import dotted, walk
from moeframe_compat.model.objects import Module
from moeframe_compat.model.surfaces import Surfaces, Variable

WORDS = ("environ", "getenv", "envvar", "env_prefix")
"""A text without any of these reads none."""
_READERS = ("get", "pop", "__getitem__")
_NAMED = ("envvar",)
_PREFIXED = ("auto_envvar_prefix", "env_prefix")


def read_variables(surfaces: Surfaces, module: Module, tree: ast.Module) -> None:
    """Add what a module reads. Setting a variable, for other programs or for its own children, is no reading."""
    nodes = list(walk(tree))
    homes, getters = _spelled(nodes, "environ"), _spelled(nodes, "getenv")
    aliases = _aliases(nodes, homes)
    for node in nodes:
        for key in _keys(node, homes, aliases, getters):
            _add(surfaces, module, node, key, certain=not _through(node, aliases))


def _spelled(nodes: list[ast.AST], name: str) -> set[str]:
    """How a module spells something of `os`."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {f"{a.asname or 'os'}.{name}" for a in node.names if a.name == "os"}
        elif isinstance(node, ast.ImportFrom) and node.module == "os":
            found |= {a.asname or name for a in node.names if a.name == name}
    return found


def _aliases(nodes: list[ast.AST], homes: set[str]) -> set[str]:
    """Variables and parameters that may be the environment, or a copy of it."""
    found = set()
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None and _holds(node.value, homes):
            found |= {dotted(t) for t in (node.targets if isinstance(node, ast.Assign) else [node.target])}
        elif isinstance(node, ast.arguments):
            named = [*node.posonlyargs, *node.args]
            pairs = [
                *zip(reversed(named), reversed(node.defaults), strict=False),
                *zip(node.kwonlyargs, node.kw_defaults, strict=True),
            ]
            found |= {a.arg for a, d in pairs if d is not None and _holds(d, homes)}
    return {name for name in found if name}


def _holds(value: ast.AST, homes: set[str]) -> bool:
    """Is a value the environment, a copy of it, or one of both by a condition, and not merely read from it?"""
    if isinstance(value, ast.IfExp):
        return _holds(value.body, homes) or _holds(value.orelse, homes)
    if isinstance(value, ast.BoolOp):
        return any(_holds(v, homes) for v in value.values)
    if isinstance(value, ast.Dict):
        return any(k is None and _holds(v, homes) for k, v in zip(value.keys, value.values, strict=True))
    if isinstance(value, ast.Call):
        function = dotted(value.func) or ""
        copies = function.rpartition(".")[2] == "copy" and function.rpartition(".")[0] in homes
        return copies or (function == "dict" and any(_holds(a, homes) for a in value.args))
    return dotted(value) in homes


def _keys(node: ast.AST, homes: set[str], aliases: set[str], getters: set[str]) -> Iterator[ast.expr]:
    """What a node reads, or a prefix of what it reads, in front of a star."""
    holders = homes | aliases
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and dotted(node.value) in holders:
        yield node.slice
    elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        if dotted(node.comparators[0]) in holders:
            yield node.left
    elif isinstance(node, ast.Call):
        function = dotted(node.func) or ""
        owner, _, last = function.rpartition(".")
        if node.args and (function in getters or (last in _READERS and owner in holders)):
            yield node.args[0]
        for k in node.keywords:
            if k.arg in _NAMED:
                yield from k.value.elts if isinstance(k.value, (ast.List, ast.Tuple)) else [k.value]
            elif k.arg in _PREFIXED:
                yield ast.BinOp(k.value, ast.Add(), ast.Name("_", ast.Load()))


def _through(node: ast.AST, aliases: set[str]) -> bool:
    """Is it read from something that may be another mapping?"""
    holder: ast.AST | None = None
    if isinstance(node, ast.Subscript):
        holder = node.value
    elif isinstance(node, ast.Compare):
        holder = node.comparators[0]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        holder = node.func.value
    return holder is not None and dotted(holder) in aliases


def _add(surfaces: Surfaces, module: Module, node: ast.AST, key: ast.expr, *, certain: bool) -> None:
    line = getattr(node, "lineno", 1)
    if not isinstance(key, ast.Constant):
        surfaces.variables.append(Variable(ast.unparse(key), module.file, line, computed=True))
    elif isinstance(key.value, str) and key.value and (certain or key.value.isupper()):
        surfaces.variables.append(Variable(key.value, module.file, line))
