"""Options and arguments that click's decorators add to a command, and what hands several of them on."""

from __future__ import annotations

import ast

from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Module
from moeframe_compat.model.surfaces import CliOption, OptionBundle, Surfaces

_MADE = {
    "option": "",
    "argument": "",
    "version_option": "--version",
    "help_option": "--help",
    "password_option": "--password",
    "confirmation_option": "--yes",
}
"""Makers of options, and how the option is called that each makes unless it is told otherwise."""


def adds_option(node: ast.AST) -> bool:
    """Is it a call such as `click.option(...)`?"""
    return isinstance(node, ast.Call) and (dotted(node.func) or "").rpartition(".")[2] in _MADE


def click_option(call: ast.Call, parser: str, file: str, scope: str = "") -> CliOption | None:
    """What such a call adds; None if its name is computed."""
    kind = (dotted(call.func) or "").rpartition(".")[2]
    argument = kind == "argument"
    names = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    names = names or ([_MADE[kind]] if _MADE[kind] and not call.args else [])
    if not names or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    given = {k.arg: k.value for k in call.keywords if k.arg}
    flags = [f for n in names if argument or n.startswith("-") for f in ([n] if argument else n.split("/"))]
    plain = next((n for n in names if not n.startswith("-")), "")
    type_name, choices = _type(given.get("type"))
    is_flag = _true(given.get("is_flag")) or any("/" in n for n in names) or kind in _FLAGS
    nargs = ast.unparse(given["nargs"]) if "nargs" in given else ""
    asked = argument and "default" not in given and nargs != "-1" and not _false(given.get("required"))
    return CliOption(
        parser,
        [f.strip() for f in flags] or [plain],
        "",  # the function's own parameter: nobody outside sees its name
        file,
        call.lineno,
        action="store_true" if is_flag else "append" if _true(given.get("multiple")) else "",
        type=type_name,
        default=ast.unparse(given["default"]) if "default" in given else None,
        choices=choices,
        nargs=nargs,
        required=asked or _true(given.get("required")),
        positional=argument,
        scope=scope,
    )


_FLAGS = ("version_option", "help_option", "confirmation_option")


def read_bundles(surfaces: Surfaces, module: Module, tree: ast.Module) -> None:
    """Add the functions and variables of a module that may add options where they decorate a command."""
    made = [(name, node) for node in tree.body for name in _names(node)]
    near = {name for name, _ in made} | {n for n, target in module.imports.items() if _inside(target, module)}
    found = {name: _bundle(name, node, module, near) for name, node in made}
    surfaces.bundles += [b for b in found.values() if b.options or b.open or b.uses]


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return [] if any(is_command(d) for d in node.decorator_list) else [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


def is_command(decorator: ast.expr) -> bool:
    """Does a decorator make a function a command?"""
    name = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    return name.rpartition(".")[2] in ("command", "group", "callback")


def _inside(target: str, module: Module) -> bool:
    return target.partition(".")[0] == module.path.partition(".")[0]


def _bundle(name: str, node: ast.AST, module: Module, near: set[str]) -> OptionBundle:
    made = OptionBundle(f"{module.path}.{name}")
    for n in ast.walk(node):
        if adds_option(n):
            assert isinstance(n, ast.Call)
            option = click_option(n, "", module.file)
            made.options += [] if option is None else [option]
            made.open |= option is None
        elif isinstance(n, (ast.Name, ast.Attribute)):
            used = dotted(n) or ""
            if used.partition(".")[0] in near and used not in (name, *made.uses):
                made.uses.append(used)
    return made


def handed_on(decorator: ast.expr) -> list[str]:
    """Names that a decorator may take options from: `common`, or `add` and `options.MORE` of `add(options.MORE)`."""
    if not isinstance(decorator, ast.Call):
        return [dotted(decorator) or "?"]
    names = handed_on(decorator.func)
    for given in (*decorator.args, *(k.value for k in decorator.keywords)):
        inner = given.value if isinstance(given, ast.Starred) else given
        for part in inner.elts if isinstance(inner, (ast.List, ast.Tuple)) else [inner]:
            if not adds_option(part):
                names += [name for name in (dotted(part),) if name]
    return names


def _type(node: ast.expr | None) -> tuple[str, list[str] | None]:
    if node is None:
        return "", None
    if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Choice") and node.args:
        values = node.args[0]
        if isinstance(values, (ast.List, ast.Tuple)):
            return "Choice", [ast.unparse(e) for e in values.elts]
        return "Choice", [f"*{ast.unparse(values)}"]
    return dotted(node) or ast.unparse(node), None


def _true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _false(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
