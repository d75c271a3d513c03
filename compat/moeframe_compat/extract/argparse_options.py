"""Options and sub-commands of argparse parsers, read without running them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Module
from moeframe_compat.model.surfaces import CliCommand, CliOption, Surfaces


def read_argparse(surfaces: Surfaces, module: Module, tree: ast.Module) -> None:
    """Add every `add_argument` and `add_parser` of a module."""
    _Reader(surfaces, module, "").block(tree.body)


@dataclass(frozen=True, slots=True)
class _Parser:
    """What options are added to: the name of the sub-command, and what tells parsers of one name apart."""

    name: str
    identity: str


class _Reader:
    """Follows the names of parsers through one function (or the module's top level)."""

    def __init__(self, surfaces: Surfaces, module: Module, scope: str) -> None:
        self.surfaces = surfaces
        self.module = module
        self.scope = scope
        self.parsers: dict[str, _Parser] = {}

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner = _Reader(self.surfaces, self.module, f"{self.scope}.{node.name}".strip("."))
                inner.parsers = dict(self.parsers)
                inner.block(node.body)
            else:
                self._statement(node)

    def _statement(self, node: ast.stmt) -> None:
        nested = [b for name in ("body", "orelse", "finalbody") if isinstance(b := getattr(node, name, None), list)]
        if nested:
            for body in nested:
                self.block(body)
            return
        value = getattr(node, "value", None)
        if isinstance(value, ast.Call):
            made = self._call(value)
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                name = dotted(target) if target is not None else None
                if made is not None and name:
                    self.parsers[name] = made

    def _call(self, call: ast.Call) -> _Parser | None:
        """Handle one call; the parser it makes, if it makes one."""
        func = call.func
        name = dotted(func) or ""
        last = func.attr if isinstance(func, ast.Attribute) else name
        place = (self.module.file, call.lineno)
        if last.endswith("ArgumentParser"):
            allowed = next((k.value for k in call.keywords if k.arg == "allow_abbrev"), None)
            shortens = not (isinstance(allowed, ast.Constant) and allowed.value is False)
            self.surfaces.commands.append(CliCommand("", *place, parser="", abbreviates=shortens))
            return self._fresh("")
        owner = func.value if isinstance(func, ast.Attribute) else None
        parser = self._owner(owner)
        if last == "add_parser" and call.args and isinstance(call.args[0], ast.Constant):
            made = f"{parser.name} {_constant(call.args[0])}".strip()
            self.surfaces.commands.append(CliCommand(made, *place, parser=parser.name, abbreviates=True))
            for alias in _aliases(call):
                self.surfaces.commands.append(CliCommand(f"{parser.name} {alias}".strip(), *place, parser=parser.name))
            return self._fresh(made)
        if last in ("add_subparsers", "add_argument_group", "add_mutually_exclusive_group"):
            return parser
        if last == "add_argument":
            self._option(call, parser)
        if last == "set_defaults":
            given = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
            for option in self.surfaces.options:
                if option.parser == parser.name and option.file == self.module.file and option.dest in given:
                    option.default = given[option.dest]
        return None

    def _fresh(self, name: str) -> _Parser:
        """A parser that is made here, unlike any other."""
        return _Parser(name, f"{self.module.path}:{len(self.surfaces.commands)}")

    def _owner(self, node: ast.AST | None) -> _Parser:
        if isinstance(node, ast.Call):
            return self._call(node) or _Parser("", "")
        name = (dotted(node) if node is not None else None) or ""
        return self.parsers.get(name) or _Parser("", f"{self.module.path}:{name}" if name else "")

    def _option(self, call: ast.Call, parser: _Parser) -> None:
        flags = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if not flags or len(flags) != len(call.args):
            where = f"{self.module.file}:{call.lineno}"
            self.surfaces.open_questions.append(f"{where}: option names are computed")
            return
        given = {k.arg: k.value for k in call.keywords if k.arg}
        positional = not flags[0].startswith("-")
        action = _constant(given.get("action")) or _name(given.get("action"))
        switches = [f"--no-{f[2:]}" for f in flags if f.startswith("--") and action.endswith("BooleanOptionalAction")]
        option = CliOption(
            parser.name,
            [*flags, *switches],
            _constant(given.get("dest")) or _dest(flags),
            self.module.file,
            call.lineno,
            action=action,
            type=_name(given.get("type")),
            default=ast.unparse(given["default"]) if "default" in given else None,
            choices=_choices(given.get("choices")),
            nargs=str(_constant(given.get("nargs")) or _name(given.get("nargs"))),
            required=_truth(given.get("required")) or (positional and _constant(given.get("nargs")) not in ("?", "*")),
            positional=positional,
            scope=f"{parser.identity}@{self.scope}" if parser.identity else "",
        )
        self.surfaces.options.append(option)


def _aliases(call: ast.Call) -> list[str]:
    given = next((k.value for k in call.keywords if k.arg == "aliases"), None)
    if not isinstance(given, (ast.List, ast.Tuple)):
        return []
    return [str(e.value) for e in given.elts if isinstance(e, ast.Constant)]


def _dest(flags: list[str]) -> str:
    long = next((f for f in flags if f.startswith("--")), flags[0])
    return long.lstrip("-").replace("-", "_") if long.startswith("-") else long


def _constant(node: ast.AST | None) -> str:
    return str(node.value) if isinstance(node, ast.Constant) and node.value is not None else ""


def _truth(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _name(node: ast.AST | None) -> str:
    return "" if node is None or isinstance(node, ast.Constant) else (dotted(node) or ast.unparse(node))


def _choices(node: ast.AST | None) -> list[str] | None:
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return [ast.unparse(e) for e in node.elts]
    return None if node is None else [f"*{ast.unparse(node)}"]
