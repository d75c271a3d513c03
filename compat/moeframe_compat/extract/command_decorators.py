"""Commands of click and typer: functions decorated as commands, with their options."""

from __future__ import annotations

import ast

from moeframe_compat.extract.bodies import FunctionNode
from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Attribute, Function, Module
from moeframe_compat.model.surfaces import CliCommand, CliOption, Surfaces


def read_commands(surfaces: Surfaces, module: Module, tree: ast.Module) -> None:
    """Add the commands of a module that uses click or typer."""
    uses = {t.split(".")[0] for t in module.imports.values()}
    if not uses & {"click", "typer", "rich_click", "cloup", "asyncclick"}:
        return
    groups = _groups(surfaces, module, tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            _command(surfaces, module, node, groups)
    for statement in tree.body:
        call = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Call) and call.args:
            _by_call(surfaces, module, call, groups)


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
        made.append(_typer(argument, default, parser, module))
    return [option for option in made if option is not None]


def _groups(surfaces: Surfaces, module: Module, tree: ast.Module) -> dict[str, str]:
    """Add the apps that a module puts below others (`app.add_typer(inner, name="x")`); their names by variable."""
    groups: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not (dotted(node.func) or "").endswith(".add_typer") or not node.args:
            continue
        variable = dotted(node.args[0])
        name = next((k.value.value for k in node.keywords if k.arg == "name" and isinstance(k.value, ast.Constant)), "")
        if variable and name:
            groups[variable] = str(name)
            surfaces.commands.append(CliCommand(str(name), module.file, node.lineno))
    return groups


def _command(surfaces: Surfaces, module: Module, node: FunctionNode, groups: dict[str, str]) -> None:
    decorators = [(d, dotted(d.func if isinstance(d, ast.Call) else d) or "") for d in node.decorator_list]
    found = next(((d, n) for d, n in decorators if n.rsplit(".", 1)[-1] in ("command", "group", "callback")), None)
    if found is None:
        return
    decorator, path = found
    app = path.rpartition(".")[0]
    click_like = app in ("click", "rich_click", "cloup", "asyncclick") or any(
        n.rsplit(".", 1)[-1] in ("option", "argument") for _, n in decorators
    )
    name = _command_name(decorator) or node.name.removesuffix("_command").replace("_", "-")
    callback = path.endswith("callback")
    group = groups.get(app, "")
    name = f"{group} {name}" if group else name
    parser = group if callback else name
    if not callback:
        surfaces.commands.append(CliCommand(name, module.file, node.lineno))
    if click_like:
        for d, n in decorators:
            if n.rsplit(".", 1)[-1] in ("option", "argument") and isinstance(d, ast.Call):
                surfaces.options.append(_click(d, parser, module, argument=n.endswith("argument")))
        return
    args = node.args
    defaults = [None] * (len(args.posonlyargs) + len(args.args) - len(args.defaults)) + list(args.defaults)
    pairs = [
        *zip((*args.posonlyargs, *args.args), defaults, strict=True),
        *zip(args.kwonlyargs, args.kw_defaults, strict=True),
    ]
    for arg, default in pairs:
        option = _typer(arg, default, parser, module)
        if option is not None:
            surfaces.options.append(option)


def _command_name(decorator: ast.expr) -> str:
    if not isinstance(decorator, ast.Call):
        return ""
    given = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg == "name")]
    return next((str(g.value) for g in given if isinstance(g, ast.Constant) and g.value), "")


def _click(call: ast.Call, parser: str, module: Module, *, argument: bool) -> CliOption:
    names = [str(a.value) for a in call.args if isinstance(a, ast.Constant)]
    given = {k.arg: k.value for k in call.keywords if k.arg}
    flags = [f for n in names if argument or n.startswith("-") for f in ([n] if argument else n.split("/"))]
    plain = next((n for n in names if not n.startswith("-")), "")
    kind, choices = _type(given.get("type"))
    is_flag = _true(given.get("is_flag")) or any("/" in n for n in names)
    return CliOption(
        parser,
        [f.strip() for f in flags] or [plain],
        "",  # the function's own parameter: nobody outside sees its name
        module.file,
        call.lineno,
        action="store_true" if is_flag else "append" if _true(given.get("multiple")) else "",
        type=kind,
        default=ast.unparse(given["default"]) if "default" in given else None,
        choices=choices,
        nargs=ast.unparse(given["nargs"]) if "nargs" in given else "",
        required=(argument and "default" not in given and not _false(given.get("required")))
        or _true(given.get("required")),
        positional=argument,
    )


def _type(node: ast.expr | None) -> tuple[str, list[str] | None]:
    if node is None:
        return "", None
    if isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("Choice") and node.args:
        values = node.args[0]
        if isinstance(values, (ast.List, ast.Tuple)):
            return "Choice", [ast.unparse(e) for e in values.elts]
        return "Choice", [f"*{ast.unparse(values)}"]
    return dotted(node) or ast.unparse(node), None


def _typer(arg: ast.arg, default: ast.expr | None, parser: str, module: Module) -> CliOption | None:
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
        required=default is None,
        positional=argument,
    )


def _unaliased(annotation: ast.expr | None, module: Module) -> ast.expr | None:
    """What a name of the module stands for, where it is an alias of `Annotated[...]`."""
    made = module.members.get(annotation.id) if isinstance(annotation, ast.Name) else None
    if isinstance(made, Attribute) and made.value and made.value.startswith(("Annotated[", "typing.Annotated[")):
        return ast.parse(made.value, mode="eval").body
    return annotation


def _info_kind(node: ast.AST | None) -> str:
    name = (dotted(node.func) or "").rsplit(".", 1)[-1] if isinstance(node, ast.Call) else ""
    return name if name in ("Option", "Argument") else ""


def _true(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _false(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is False
