"""Which modules of its package a module imports while it is imported itself."""

from __future__ import annotations

import ast
from importlib.util import resolve_name

from moeframe_compat.extract.names import dotted, walk
from moeframe_compat.extract.statements import scoped_statements
from moeframe_compat.model.objects import ANY, MAYBE, Module


def read_loads(module: Module, tree: ast.Module) -> None:
    """Fill `loads`. Of `from a import b` nobody knows yet whether b is a module, but a is one."""
    top = module.path.partition(".")[0]
    found: dict[str, bool] = {}
    for scoped in scoped_statements(tree.body):
        if scoped.type_checking or isinstance(scoped.node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        for name in _named(module, scoped.node):
            if name == ANY or name.partition(".")[0] == top:
                found[name] = found.get(name, False) or not scoped.branch
    module.loads = [name if sure or name == ANY else f"{name}{MAYBE}" for name, sure in found.items()]


def _named(module: Module, node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [n.name for n in node.names]
    if isinstance(node, ast.ImportFrom):
        base = absolute(node, module)
        return [base, *(f"{base}.{n.name}" for n in node.names)]
    calls = [n for n in walk(node) if isinstance(n, ast.Call)]
    return [name for call in calls for name in _called(module, call)]


def _called(module: Module, call: ast.Call) -> list[str]:
    """What `import_module` and `__import__` are given, if it is written out."""
    if (dotted(call.func) or "").rpartition(".")[2] not in ("import_module", "__import__") or not call.args:
        return []
    given = call.args[0]
    if not isinstance(given, ast.Constant) or not isinstance(given.value, str):
        return [ANY]
    return [_resolved(given.value, module)]


def _resolved(name: str, module: Module) -> str:
    """A module's dotted path from a name that may begin with dots; without them where they lead out of the package."""
    try:
        return resolve_name(name, module.path if module.is_package else module.path.rpartition(".")[0])
    except ImportError:
        return name.lstrip(".")


def absolute(node: ast.ImportFrom, module: Module) -> str:
    """The dotted path of the module that a `from` names."""
    return _resolved("." * node.level + (node.module or ""), module)
