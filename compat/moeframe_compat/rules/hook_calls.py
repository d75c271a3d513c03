"""HK007 and HK008: when hooks are called, with what, and what they may return."""

from __future__ import annotations

import re

from moeframe_compat.index.annotations import CONCRETE, alternatives, covers, show
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.model.objects import Class, Function, Member
from moeframe_compat.rules.context import Context, Place

Calls = dict[str, list[tuple[str, str, Place]]]
"""By hook: the calling function, the arguments as `a, b=None`, and where the function stands."""


def check_return(ctx: Context, old: Found, new: Found) -> None:
    """HK008: implementations return what the old specification allowed."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    before = alternatives(ctx.old, old.module, old.obj.returns)
    now = alternatives(ctx.new, new.module, new.obj.returns)
    if before is None or now is None or covers(ctx.new, now, before) is not False:
        return
    shared = {t.path for t in before} & {t.path for t in now}
    other = not shared and any(t.path in CONCRETE or t.literal for t in before)
    ctx.emit(
        "HK008",
        old.path,
        old=f"-> {show(before)}",
        new=f"-> {show(now)}",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=f"implementations return {show(before)}, the package expects {show(now)}",
        fix=f"accept {show(before)} too, or add a new hook for the other contract",
        severity="" if other else "warning",
        kind="" if other else "typing",
    )


def check_calls(ctx: Context, hooks: list[str]) -> None:
    """HK007: hooks that both releases specify, by the calls of both."""
    before, now = _calls(ctx.old), _calls(ctx.new)
    open_ended = "*" in now
    for name in hooks:
        if name not in before:
            continue
        if name not in now:
            if not open_ended:
                _report(
                    ctx, name, "called", "never called", before[name][0][2], "implementations have no effect", "warning"
                )
            continue
        had = {a for _, given, _ in before[name] for a in _nones(given)}
        for function, given, place in now[name]:
            for argument in sorted(_nones(given) - had):
                why = f"{function} passes {argument}=None: implementations that use it raise"
                _report(ctx, name, argument, f"{argument}=None", place, why, "")
    _order(ctx, hooks)


def _nones(given: str) -> set[str]:
    return set(re.findall(r"(\w+)=None", given))


def _order(ctx: Context, hooks: list[str]) -> None:
    """Two hooks that one function calls in the other order."""
    before, now = _functions(ctx.old), _functions(ctx.new)
    for path, (_, old) in before.items():
        if path not in now:
            continue
        place, new = now[path]
        a = [n for n in dict.fromkeys(_name(c) for c in old.body.hook_calls) if n in hooks]
        b = [n for n in dict.fromkeys(_name(c) for c in new.body.hook_calls) if n in hooks]
        a, b = [n for n in a if n in b], [n for n in b if n in a]
        if a != b:
            first = next(n for n, m in zip(a, b, strict=True) if n != m)
            order = f"{' then '.join(a)} became {' then '.join(b)}"
            _report(
                ctx,
                first,
                " then ".join(a),
                " then ".join(b),
                place,
                f"{path} calls them in another order: {order}",
                "",
            )


def _report(ctx: Context, hook: str, old: str, new: str, place: Place, why: str, severity: str) -> None:
    ctx.emit(
        "HK007",
        f"hook:{hook}",
        old=old,
        new=new,
        at=place if any(m.file == place[0] for m in ctx.new.modules.values()) else ctx.survivor(ctx.new.package),
        was=place,
        why=why,
        fix="keep it, or give the new moment a hook of its own, and say so in the changelog",
        severity=severity,
    )


def _calls(index: Index) -> Calls:
    out: Calls = {}
    for path, (place, function) in _functions(index).items():
        for call in function.body.hook_calls:
            out.setdefault(_name(call), []).append((path, call.partition("(")[2], place))
    return out


def _name(call: str) -> str:
    return call.partition("(")[0]


def _functions(index: Index) -> dict[str, tuple[Place, Function]]:
    """Functions and methods that call hooks, with their place."""
    out: dict[str, tuple[Place, Function]] = {}

    def walk(prefix: str, file: str, members: list[Member]) -> None:
        for m in members:
            if isinstance(m, Function) and m.body.hook_calls:
                out[f"{prefix}.{m.name}"] = (file, m.line), m
            elif isinstance(m, Class):
                walk(f"{prefix}.{m.name}", file, list(m.members.values()))

    for path, module in index.modules.items():
        walk(path, module.file, list(module.members.values()))
    return out
