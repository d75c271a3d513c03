"""CL001-CL008, CL010: options, positional arguments and sub-commands."""

from __future__ import annotations

import difflib

from moeframe_compat.index.classes import enum_values
from moeframe_compat.index.lookup import Index
from moeframe_compat.index.values import evaluate, known, same, show
from moeframe_compat.model.objects import Class
from moeframe_compat.model.surfaces import CliOption
from moeframe_compat.rules.cli_pairs import Pairs, check_order, symbol_of
from moeframe_compat.rules.command_line import CommandLine, command_line
from moeframe_compat.rules.context import Context

_WIDER = {
    "float": ("int",),
    "str": ("int", "float", "Path", "pathlib.Path", ""),
    "": ("str",),
    "Path": ("str", ""),
    "pathlib.Path": ("str", ""),
}


def check_cli(ctx: Context) -> None:
    """All of them."""
    before, now = command_line(ctx.old), command_line(ctx.new)
    gone = _commands(ctx, before, now)
    pairs = Pairs(before.options, now.options)
    for o in before.options:
        if o.parser in gone:
            continue
        n = pairs.heir(o)
        if n is not None:
            _compare(ctx, o, n)
        elif o.parser in now.open:
            ctx.skipped.add(f"CL001 for {symbol_of(o)}: {now.open[o.parser]} adds options that cannot be read")
        else:
            _removed(ctx, o, now.options)
    _added(ctx, before, now, pairs, gone)
    check_order(ctx, before.options, now.options)
    _abbreviations(ctx, before.options, now.options)


def _commands(ctx: Context, before: CommandLine, now: CommandLine) -> set[str]:
    had, new = {c.name for c in before.commands}, {c.name for c in now.commands}
    gone = set()
    for c in before.commands:
        if c.name and c.name not in new:
            gone.add(c.name)
            near = difflib.get_close_matches(c.name, [n for n in new if n and n not in had], 1, 0.5)
            ctx.emit(
                "CL007",
                f"cli:{c.name}",
                old=c.name,
                new=near[0] if near else "",
                at=_near(ctx, c.file),
                was=(c.file, c.line),
                why=f"`{c.name}` is refused: no such command",
                fix=f"keep {c.name} as an alias that warns",
            )
    return gone


def _near(ctx: Context, file: str) -> tuple[str, int]:
    same_file = any(m.file == file for m in ctx.new.modules.values())
    return (file, 1) if same_file else ctx.survivor(ctx.old.package)


def _removed(ctx: Context, o: CliOption, new: list[CliOption]) -> None:
    names = [f for n in new if n.parser == o.parser for f in n.flags]
    near = difflib.get_close_matches(o.flags[0], names, 1, 0.6)
    ctx.emit(
        "CL001",
        symbol_of(o),
        old=", ".join(o.flags),
        new=near[0] if near else "",
        at=_near(ctx, o.file),
        was=(o.file, o.line),
        why=f"commands with {o.flags[0]} are refused",
        fix=f"keep {o.flags[0]} as an alias" + (f" of {near[0]}" if near else " that warns"),
    )


def _compare(ctx: Context, o: CliOption, n: CliOption) -> None:
    symbol, at, was = symbol_of(o), (n.file, n.line), (o.file, o.line)
    alias_only = o.flags[0] not in n.flags[:1]
    for flag in o.flags:
        if flag not in n.flags and not o.positional:
            ctx.emit(
                "CL001",
                f"{symbol.rpartition(' ')[0] or 'cli'}:{flag}".replace("cli:cli:", "cli:"),
                old=flag,
                new=", ".join(n.flags),
                at=at,
                was=was,
                why=f"commands with {flag} are refused",
                fix=f"keep {flag} as an alias of {n.flags[0]}",
            )
    if o.dest != n.dest and (o.positional or not alias_only):
        ctx.emit(
            "CL002",
            symbol,
            old=o.dest,
            new=n.dest,
            at=at,
            was=was,
            why=f"code that reads args.{o.dest} raises AttributeError",
            fix=f"keep dest={o.dest!r}",
        )
    _choices(ctx, symbol, o, n, at, was)
    _type(ctx, symbol, o, n, at, was)
    if n.required and not o.required:
        ctx.emit(
            "CL005",
            symbol,
            old="optional",
            new="required",
            at=at,
            was=was,
            why=f"commands without {o.flags[0]} are refused",
            fix="keep it optional",
        )
    _default(ctx, symbol, o, n, at, was)


def _values(ctx: Context, texts: list[str], side: str, o: CliOption) -> list[object] | None:
    index = ctx.old if side == "old" else ctx.new
    module = next((p for p, m in index.modules.items() if m.file == o.file), index.package)
    out: list[object] = []
    for t in texts:
        value = evaluate(index, module, t.removeprefix("*"))
        if not known(value):
            return None
        if not t.startswith("*"):
            out.append(value)
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            out += list(value)
        else:
            return None
    return out


def _enum(index: Index, o: CliOption) -> list[object] | None:
    """What an option takes whose type is an enum: the values of its members."""
    module = next((p for p, m in index.modules.items() if m.file == o.file), "")
    text = _type_name(o.type)
    found = index.name(module, text) if module and text.replace(".", "").isidentifier() else None
    if found is None or not isinstance(found.obj, Class) or not index.inherits(found, "enum.Enum"):
        return None
    values = [evaluate(index, found.path, value) for value in enum_values(index, found).values()]
    return values if all(known(v) for v in values) else None


def _choices(ctx: Context, symbol: str, o: CliOption, n: CliOption, at: tuple[str, int], was: tuple[str, int]) -> None:
    now = _values(ctx, n.choices, "new", n) if n.choices is not None else _enum(ctx.new, n)
    before = _values(ctx, o.choices, "old", o) if o.choices is not None else _enum(ctx.old, o)
    if now is None:
        return
    if o.choices is None and before is None:
        ctx.emit(
            "CL003",
            symbol,
            old="any value",
            new=", ".join(map(show, now)),
            at=at,
            was=was,
            why="other values are refused now",
            fix="warn for one release before refusing them",
        )
        return
    lost = [v for v in before or [] if v not in now]
    if lost:
        names = ", ".join(map(show, lost))
        ctx.emit(
            "CL003",
            symbol,
            old=", ".join(map(show, before or [])),
            new=", ".join(map(show, now)),
            at=at,
            was=was,
            why=f"{o.flags[0]} {names} is refused",
            fix=f"keep {names} until its announced removal",
        )


def _shape(o: CliOption) -> str:
    flag = (
        o.action in ("store_true", "store_false", "store_const", "count", "help", "version")
        or "BooleanOptional" in o.action
    )
    return (
        "flag"
        if flag
        else "many"
        if o.nargs in ("*", "+", "-1") or o.action in ("append", "extend")
        else o.nargs or "one"
    )


def _type(ctx: Context, symbol: str, o: CliOption, n: CliOption, at: tuple[str, int], was: tuple[str, int]) -> None:
    a, b = _shape(o), _shape(n)
    widened = (a == "one" and b in ("?", "many")) and not (o.action != n.action and "append" in n.action)
    if a != b and not widened:
        ctx.emit(
            "CL004",
            symbol,
            old=f"takes {a}",
            new=f"takes {b}",
            at=at,
            was=was,
            why="commands with the old number of values are refused",
            fix="keep the number of values",
        )
        return
    old, new = _type_name(o.type), _type_name(n.type)
    narrowing = {"int", "float", "bool"}
    if old != new and new in narrowing and old not in _WIDER.get(new, ()):
        ctx.emit(
            "CL004",
            symbol,
            old=old or "str",
            new=new,
            at=at,
            was=was,
            why=f"values that are no {new} are refused",
            fix=f"keep type {old or 'str'}",
        )


def _type_name(text: str) -> str:
    name = text.removeprefix("click.").replace("Optional[", "").rstrip("]").replace(" | None", "")
    return {"INT": "int", "FLOAT": "float", "STRING": "str", "BOOL": "bool"}.get(name, name)


def _default(ctx: Context, symbol: str, o: CliOption, n: CliOption, at: tuple[str, int], was: tuple[str, int]) -> None:
    if _shape(o) == "flag" and o.action != n.action and {o.action, n.action} == {"store_true", "store_false"}:
        ctx.emit(
            "CL006",
            symbol,
            old=o.action,
            new=n.action,
            at=at,
            was=was,
            why="the flag now means the opposite",
            fix=f"keep {o.action}",
        )
        return
    before = _values(ctx, [o.default], "old", o) if o.default is not None else [None]
    now = _values(ctx, [n.default], "new", n) if n.default is not None else [None]
    flags = _shape(o) == "flag"
    if before is None or now is None or o.required or n.required:
        return
    a, b = before[0], now[0]
    if flags:
        a, b = bool(a), bool(b)
    if not same(a, b):
        ctx.emit(
            "CL006",
            symbol,
            old=show(a),
            new=show(b),
            at=at,
            was=was,
            why=f"commands without {o.flags[0]} now use {show(b)}",
            fix=f"keep the default {show(a)}",
        )


def _added(ctx: Context, before: CommandLine, now: CommandLine, pairs: Pairs, gone: set[str]) -> None:
    """Options that must be given and did not exist."""
    homes: dict[str, set[str]] = {}
    for c in before.commands:
        homes.setdefault(c.name, set()).add(c.file)
    for o in before.options:
        homes.setdefault(o.parser, set()).add(o.file)
    files = {m.file for m in ctx.new.modules.values()}
    for n in now.options:
        if not n.required or n.parser not in homes or n.parser in gone or n.parser in before.open or pairs.known(n):
            continue
        if not n.parser and n.file not in homes[""] and homes[""] <= files:
            continue  # another program
        ctx.emit(
            "CL005",
            symbol_of(n),
            old="",
            new=n.flags[0],
            at=(n.file, n.line),
            was=ctx.survivor(ctx.old.package),
            why=f"commands without {n.flags[0]} are refused",
            fix="give it a default",
        )


def _common(a: str, b: str) -> str:
    """The longest text that both start with."""
    same = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        same += 1
    return a[:same]


def _abbreviations(ctx: Context, old: list[CliOption], new: list[CliOption]) -> None:
    """CL008: two options now share what abbreviated one; only prefixes of two whole words or more count."""
    shortens = [c for c in ctx.old.snapshot.surfaces.commands if c.abbreviates]
    if not shortens or not any(c.abbreviates for c in ctx.new.snapshot.surfaces.commands):
        return
    had = {f for o in old for f in o.flags if f.startswith("--")}
    for o in old:
        for flag in (f for f in o.flags if f.startswith("--")):
            for n in (n for n in new if n.parser == o.parser and n.file == o.file):
                for fresh in (f for f in n.flags if f.startswith("--") and f not in had and flag not in n.flags):
                    prefix = _common(flag, fresh).rpartition("-")[0]
                    whole = prefix if flag != prefix else ""
                    rivals = [h for h in had if h != flag and h.startswith(prefix)]
                    if whole.strip("-").count("-") >= 1 and not rivals and prefix not in n.flags:
                        ctx.emit(
                            "CL008",
                            f"cli:{flag}",
                            old=f"{prefix} means {flag}",
                            new=f"{prefix} fits {flag} and {fresh}",
                            at=(n.file, n.line),
                            was=(o.file, o.line),
                            why=f"commands that abbreviate it as {prefix} are refused: ambiguous",
                            fix="name the new option otherwise, or set allow_abbrev=False in a release of its own",
                        )
