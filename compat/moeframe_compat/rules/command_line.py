"""The commands of a release and their options, with those that decorators of the package add."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.index.public import app_kind
from moeframe_compat.model.objects import Attribute, Class, Function
from moeframe_compat.model.surfaces import CLICK, CliCommand, CliOption, OptionBundle


@dataclass(slots=True)
class CommandLine:
    """All of it. `open`: commands to which something adds options that cannot be read, and what does."""

    commands: list[CliCommand] = field(default_factory=list)
    options: list[CliOption] = field(default_factory=list)
    open: dict[str, str] = field(default_factory=dict)


def command_line(index: Index) -> CommandLine:
    """What a release offers to a shell."""
    if ("command line",) not in index.memo:
        index.memo["command line",] = _read(index)
    found: CommandLine = index.memo["command line",]
    return found


def _read(index: Index) -> CommandLine:
    surfaces = index.snapshot.surfaces
    bundles = {b.name: b for b in surfaces.bundles}
    out = CommandLine(options=list(surfaces.options))
    for command in surfaces.commands:
        home, _, name = command.target.partition(":")
        kind = _kind(index, command)
        if not kind:
            continue
        out.commands.append(command)
        found = index.name(home, name) if kind == "typer" else None
        if found is not None and isinstance(found.obj, Function):
            from moeframe_compat.extract.command_decorators import options_of

            out.options += options_of(found.obj, command.name, index.modules[found.module])
        if kind != "typer":
            for option in _added(index, command, bundles, out):
                out.options.append(replace(option, parser=command.name))
    return out


def _kind(index: Index, command: CliCommand) -> str:
    """Is it one of click, or of typer with options in the signature of its target? "" if it is no command."""
    if not command.app:
        return "typer" if command.target else "click"
    home, _, text = command.app.partition(":")
    module = index.modules.get(home)
    libraries = {target.partition(".")[0] for target in module.imports.values()} if module is not None else set()
    return app_kind(index, index.name(home, text)) or ("typer" if "typer" in libraries else "")


def _added(
    index: Index, command: CliCommand, bundles: dict[str, OptionBundle], out: CommandLine
) -> Iterator[CliOption]:
    """Options that decorators other than those of click itself add to a command."""
    home = next((p for p, m in index.modules.items() if m.file == command.file), "")
    todo, seen = [(home, text) for text in command.adds], set()
    while todo:
        module, text = todo.pop(0)
        bundle, found = bundles.get(text), None
        if bundle is None:
            found = index.name(module, text) if text != "?" else None
            bundle = bundles.get(found.path) if found is not None else None
        if bundle is None:
            if text == "?" or _unreadable(index, found, module, text, bundles):
                out.open.setdefault(command.name, text)
            continue
        if bundle.name in seen:
            continue
        seen.add(bundle.name)
        yield from bundle.options
        if bundle.open:
            out.open.setdefault(command.name, text)
        todo += [(found.module if found is not None else module, use) for use in bundle.uses]


def _unreadable(index: Index, found: Found | None, module: str, text: str, bundles: dict[str, OptionBundle]) -> bool:
    """May it add options that nobody has read?"""
    if found is None:
        return module in index.modules
    if found.external:
        library = found.path.partition(".")[0]
        return ("click" in library and library not in CLICK) or text.lower().endswith(("option", "options"))
    if not isinstance(found.obj, (Function, Class, Attribute)):
        return False
    if isinstance(found.obj, Attribute) and not set(found.obj.value or "(") & set("(["):
        return False
    if found.path.rpartition(".")[0] != found.module:
        return True  # a member of a class
    homes = {name.rpartition(".")[0] for name in bundles if ":" not in name}
    targets = index.modules[found.module].imports.values()
    return found.module not in homes and any(target in homes or target in bundles for target in targets)
