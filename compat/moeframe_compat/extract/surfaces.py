"""Surfaces read from a module's syntax tree: command line, registries, resolvers, entry-point groups."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from moeframe_compat.extract.argparse_options import read_argparse
from moeframe_compat.extract.command_decorators import read_commands
from moeframe_compat.extract.names import dotted, walk
from moeframe_compat.model.objects import Module
from moeframe_compat.model.surfaces import GroupUse, Registration, Resolver, Surfaces


def read_surfaces(surfaces: Surfaces, module: Module, tree: ast.Module) -> None:
    """Add what this module contributes."""
    nodes: list[ast.AST] = [n for n in walk(tree) if isinstance(n, _KINDS)]
    if any(isinstance(n, ast.Call) and getattr(n.func, "attr", "") in ("add_argument", "add_parser") for n in nodes):
        read_argparse(surfaces, module, tree)
    read_commands(surfaces, module, tree, nodes)
    for node in nodes:
        if isinstance(node, ast.Call):
            _call(surfaces, module, node)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for d in node.decorator_list:
                _decorated(surfaces, module, node, d)
    _tables(surfaces, module, tree, nodes)


_KINDS = (ast.Call, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Subscript)


def _call(surfaces: Surfaces, module: Module, node: ast.Call) -> None:  # noqa: C901 - kinds of calls
    name = dotted(node.func) or ""
    last = name.rsplit(".", 1)[-1]
    place = (module.file, node.lineno)
    first = _text(node.args[0], module) if node.args else None
    if last in ("register_new_resolver", "register_resolver") and isinstance(first, str):
        surfaces.resolvers.append(Resolver(first, *place))
    elif last == "structured" and node.args:
        target = dotted(node.args[0]) or dotted(getattr(node.args[0], "func", node.args[0]))
        if target:
            surfaces.structured.append(f"{module.path}:{target}")
    elif last in ("entry_points", "iter_entry_points", "load_setuptools_entrypoints") or _selects(node, module):
        given = next((k.value for k in node.keywords if k.arg in ("group", "namespace")), None)
        if given is None:
            given = node.args[0] if node.args else None
        group = _text(given, module)
        if isinstance(group, str):
            surfaces.groups.append(GroupUse("group", group, *place))
        elif given is not None and not isinstance(given, ast.Constant):
            surfaces.groups.append(GroupUse("computed group", ast.unparse(given), *place))
    elif last in ("HookspecMarker", "HookimplMarker", "PluginManager"):
        given = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "project_name"), None)
        project = _text(given, module) if given is not None else None
        if isinstance(project, str):
            surfaces.groups.append(GroupUse("hooks", project, *place))
    elif last.endswith(_OFFERS) and node.keywords:
        _offer(surfaces, module, node, name)
    elif _registers(last) and first is not None and len(node.args) > 1:
        target = dotted(node.args[1])
        if target:
            surfaces.registrations.append(Registration(_home(name), first, f"{module.path}:{target}", *place))


def _selects(node: ast.Call, module: Module) -> bool:
    """`entry_points().select(group=GROUP)`, in a module that reads metadata of distributions."""
    named = isinstance(node.func, ast.Attribute) and node.func.attr == "select"
    return named and any(k.arg == "group" for k in node.keywords) and any(map(_METADATA, module.imports.values()))


_METADATA = re.compile(r"(^|\.)(importlib(_metadata)?|metadata|pkg_resources)(\.|$)").search
_OFFERS = ("Offer", "Registration", "BackendSpec", "PluginSpec")
"""Ends of names of classes whose instances tell a framework what a plugin has."""


def _offer(surfaces: Surfaces, module: Module, node: ast.Call, name: str) -> None:
    """`DispatcherOffer(name="alltoall", options=AllToAllOptions, build=...)`."""
    given = {k.arg: k.value for k in node.keywords if k.arg}
    text = _text(given.get("name"), module)
    if not isinstance(text, str):
        return
    target, options = dotted(given.get("build", ast.Constant(None))), dotted(given.get("options", ast.Constant(None)))
    made = Registration(_home(name), text, f"{module.path}:{target or name}", module.file, node.lineno)
    if options:
        made.options = f"{module.path}:{options}"
        surfaces.structured.append(made.options)
    surfaces.registrations.append(made)


def _decorated(surfaces: Surfaces, module: Module, node: ast.AST, decorator: ast.expr) -> None:
    """`@register("name")` and its like: a call whose first argument, or `name=`, is a literal string."""
    if not isinstance(decorator, ast.Call):
        return
    name = dotted(decorator.func) or ""
    if not _registers(name.rsplit(".", 1)[-1]) and not _registers(name.split(".", maxsplit=1)[0]):
        return
    given = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg in ("name", "key"))]
    for value in given:
        text = _text(value, module)
        if isinstance(text, str):
            target = f"{module.path}:{node.name}"  # type: ignore[attr-defined]
            surfaces.registrations.append(Registration(_home(name), text, target, module.file, decorator.lineno))


def _registers(name: str) -> bool:
    words = name.lower().strip("_").split("_")
    return any(w in ("register", "registry", "registered", "registers", "provides") for w in words)


def _home(name: str) -> str:
    """A registry is known by the last two parts of what registers, so that moving it is no change."""
    return ".".join(name.split(".")[-2:])


def _tables(surfaces: Surfaces, module: Module, tree: ast.Module, nodes: list[ast.AST]) -> None:
    """Module-level `TABLE = {"name": Object, ...}` that is looked up by a variable."""
    looked_up = {
        dotted(n.value)
        for n in nodes
        if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Load) and not isinstance(n.slice, ast.Constant)
    } | {
        dotted(n.func.value)
        for n in nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "get"
    }
    for node in tree.body:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or not isinstance(node.value, ast.Dict):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = dotted(target)
        if name in looked_up and node.value.keys:
            for key, target_text in _entries(node.value):
                found = Registration(f"table {name}", key, f"{module.path}:{target_text}", module.file, node.lineno)
                surfaces.registrations.append(found)


def _entries(table: ast.Dict) -> Iterator[tuple[str, str]]:
    found = []
    for key, value in zip(table.keys, table.values, strict=True):
        target = dotted(value)
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or target is None:
            return
        found.append((key.value, target))
    yield from found


def _text(node: ast.expr | None, module: Module) -> str | None:
    """A literal string, or a module constant that holds one."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.Name):
        made = module.members.get(node.id)
        value = getattr(made, "value", None)
        if isinstance(value, str):
            try:
                text = ast.literal_eval(value)
            except (ValueError, SyntaxError):
                return None
            return text if isinstance(text, str) else None
    return None
