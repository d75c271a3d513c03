"""Commands of click and typer: functions decorated as commands, with their options."""

from __future__ import annotations

import ast
import re

from moeframe_compat.extract.bodies import FunctionNode
from moeframe_compat.extract.click_options import adds_option, click_option, handed_on, is_command, read_bundles
from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Attribute, Function, Module
from moeframe_compat.model.surfaces import CLICK, CliCommand, CliOption, OptionBundle, Surfaces


def read_commands(surfaces: Surfaces, module: Module, tree: ast.Module, nodes: list[ast.AST]) -> None:
    """Add the commands of a module that uses click or typer, or an app of the package that may be one of theirs.

    `nodes` holds all its calls and functions.
    """
    uses = _libraries(module)
    groups = _groups(surfaces, module, nodes) if uses else {}
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.decorator_list:
            _command(surfaces, module, node, groups)
    if uses:
        for statement in tree.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Call) and call.args:
                _by_call(surfaces, module, call, groups)
    if uses & CLICK:
        read_bundles(surfaces, module, tree)


def _libraries(module: Module) -> set[str]:
    return {t.partition(".")[0] for t in module.imports.values()} & {*CLICK, "typer"}


def _by_call(surfaces: Surfaces, module: Module, node: ast.Call, groups: dict[str, str]) -> None:
    """`app.command("name")(function)`."""
    path, function = dotted(getattr(node.func, "func", node.func)) or "", dotted(node.args[0])
    if path.rpartition(".")[2] != "command" or function is None:
        return
    plain = function.rpartition(".")[2]
    name = _command_name(node.func) or plain.removesuffix("_command").replace("_", "-")
    group = groups.get(path.rpartition(".")[0], "")
    name = f"{group} {name}" if group else name
    surfaces.commands.append(CliCommand(name, module.file, node.lineno, target=f"{module.path}:{function}"))


def options_of(function: Function, parser: str, module: Module) -> list[CliOption]:
    """What a function takes that typer makes a command."""
    made = []
    for p in function.params:
        annotation = ast.parse(p.annotation, mode="eval").body if p.annotation else None
        default = ast.parse(p.default, mode="eval").body if p.default else None
        argument = ast.arg(arg=p.name, annotation=annotation, lineno=function.line, col_offset=0)
        made.append(_typer(argument, default, parser, module, f"{module.path}:{function.name}"))
    return [option for option in made if option is not None]


def _groups(surfaces: Surfaces, module: Module, nodes: list[ast.AST]) -> dict[str, str]:
    """Add the apps that a module puts below others (`app.add_typer(inner, name="x")`); their names by variable."""
    groups: dict[str, str] = {}
    for node in nodes:
        if not isinstance(node, ast.Call) or not (dotted(node.func) or "").endswith(".add_typer") or not node.args:
            continue
        variable = dotted(node.args[0])
        name = next((k.value.value for k in node.keywords if k.arg == "name" and isinstance(k.value, ast.Constant)), "")
        if variable and name:
            groups[variable] = str(name)
            surfaces.commands.append(CliCommand(str(name), module.file, node.lineno))
    return groups


def _command(surfaces: Surfaces, module: Module, node: FunctionNode, groups: dict[str, str]) -> None:
    decorator = next((d for d in node.decorator_list if is_command(d)), None)
    if decorator is None:
        return
    path = dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
    app = path.rpartition(".")[0]
    kind = _kind(module, app, node)
    if not kind:
        return
    name = _command_name(decorator) or node.name.removesuffix("_command").replace("_", "-")
    callback = path.endswith("callback")
    group = groups.get(app, "")
    name = f"{group} {name}" if group else name
    parser = group if callback else name
    command = CliCommand(name, module.file, node.lineno)
    if not callback:
        surfaces.commands.append(command)
    scope = f"{module.path}:{node.name}"
    if kind == "package":
        bundle = OptionBundle(scope)
        command.app, command.target = f"{module.path}:{app}", scope
        command.adds = [scope]
        surfaces.bundles.append(bundle)
        _decorators(bundle.options, command, node, parser, scope)
    elif kind == "click":
        _decorators(surfaces.options, command, node, parser, scope)
    if kind != "typer":
        return
    args = node.args
    defaults = [None] * (len(args.posonlyargs) + len(args.args) - len(args.defaults)) + list(args.defaults)
    pairs = [
        *zip((*args.posonlyargs, *args.args), defaults, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    for arg, default in pairs:
        option = _typer(arg, default, parser, module, scope)
        if option is not None:
            surfaces.options.append(option)


def _kind(module: Module, app: str, node: FunctionNode) -> str:
    """Whose command it is: click, typer, package (what its app is, another module of the package tells), "" if none."""
    uses = _libraries(module)
    home = module.imports.get(app.partition(".")[0], "").partition(".")[0]
    if uses and (home in CLICK or any(adds_option(d) for d in node.decorator_list)):
        return "click"
    if home == module.path.partition(".")[0] and ("typer" in uses) == bool(uses & CLICK):
        return "package"
    return "typer" if "typer" in uses else "click" if uses else ""


def _decorators(options: list[CliOption], command: CliCommand, node: FunctionNode, parser: str, scope: str) -> None:
    """What the decorators of a command of click add to it."""
    for decorator in node.decorator_list:
        if is_command(decorator):
            continue
        if not adds_option(decorator):
            command.adds += handed_on(decorator)
        for made in (n for n in ast.walk(decorator) if adds_option(n)):
            assert isinstance(made, ast.Call)
            option = click_option(made, parser, command.file, scope if made is decorator else "")
            if option is None:
                command.adds.append("?")
            else:
                options.append(option)


def _command_name(decorator: ast.expr) -> str:
    if not isinstance(decorator, ast.Call):
        return ""
    given = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg == "name")]
    return next((str(g.value) for g in given if isinstance(g, ast.Constant) and g.value), "")


def _typer(arg: ast.arg, default: ast.expr | None, parser: str, module: Module, scope: str) -> CliOption | None:
    """One parameter of a typer command: `Annotated[T, typer.Option(...)] = d`, `T = typer.Option(d, ...)`, or plain."""
    annotation, info = _unaliased(arg.annotation, module), None
    if isinstance(annotation, ast.Subscript) and (dotted(annotation.value) or "").endswith("Annotated"):
        parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        annotation = parts[0]
        info = next((p for p in parts[1:] if _info_kind(p)), None)
    positional_default = 0
    if info is None and _info_kind(default):
        info, default = default, None
        assert isinstance(info, ast.Call)
        positional_default = 1
        default = info.args[0] if info.args else next((k.value for k in info.keywords if k.arg == "default"), None)
        if isinstance(default, ast.Constant) and default.value is ...:
            default = None
    kind = ast.unparse(annotation) if annotation is not None else ""
    if kind.endswith("Context"):
        return None
    argument = _info_kind(info) == "Argument" or (info is None and default is None)
    names = []
    if isinstance(info, ast.Call):
        names = [str(a.value) for a in info.args[positional_default:] if isinstance(a, ast.Constant)]
    flags = [f for n in names for f in n.split("/")]
    if not flags:
        dashed = arg.arg.replace("_", "-")
        flags = [arg.arg] if argument else [f"--{dashed}", *([f"--no-{dashed}"] if kind == "bool" else [])]
    return CliOption(
        parser,
        flags,
        "",
        module.file,
        arg.lineno,
        action="store_true" if kind == "bool" else "",
        type=kind,
        default=ast.unparse(default) if default is not None else None,
        nargs="-1" if argument and _LISTS.match(kind) else "",
        required=default is None,
        positional=argument,
        scope=scope,
    )


_LISTS = re.compile(r"(typing\.)?(Optional\[)?(list|List|Sequence)\b")


def _unaliased(annotation: ast.expr | None, module: Module) -> ast.expr | None:
    """What a name of the module stands for, where it is an alias of `Annotated[...]`."""
    made = module.members.get(annotation.id) if isinstance(annotation, ast.Name) else None
    if isinstance(made, Attribute) and made.value and made.value.startswith(("Annotated[", "typing.Annotated[")):
        return ast.parse(made.value, mode="eval").body
    return annotation


def _info_kind(node: ast.AST | None) -> str:
    name = (dotted(node.func) or "").rsplit(".", 1)[-1] if isinstance(node, ast.Call) else ""
    return name if name in ("Option", "Argument") else ""
