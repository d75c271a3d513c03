"""HK001-HK006, HK009, HK010: pluggy hook specifications, found by their markers and compared by hook name."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.index.signatures import bound, spell
from moeframe_compat.model.objects import Attribute, Class, Decorator, Function, Member
from moeframe_compat.policy.versions import at_least
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.deprecated import is_deprecated, removal_allowed
from moeframe_compat.rules.hook_calls import check_calls, check_return


@dataclass(slots=True)
class Spec:
    """One hook specification."""

    found: Found
    firstresult: bool
    historic: bool
    warns: bool
    marker: Decorator

    @property
    def function(self) -> Function:
        """Its function."""
        assert isinstance(self.found.obj, Function)
        return self.found.obj


def specs(index: Index) -> dict[str, Spec]:
    """Hook specifications of a release by hook name."""
    out: dict[str, Spec] = {}
    for path, module in index.modules.items():
        for owner, m in _functions(path, list(module.members.values())):
            marker = next((d for d in m.decorators if _is_marker(index, path, d)), None)
            if marker is not None:
                flags = _flags(marker)
                spec = Spec(
                    Found(f"{owner}.{m.name}", path, m),
                    "firstresult" in flags,
                    "historic" in flags,
                    "warn_on_impl" in flags or "warn_on_impl_args" in flags,
                    marker,
                )
                out.setdefault(m.name, spec)
    return out


def _functions(path: str, members: list[Member]) -> list[tuple[str, Function]]:
    out: list[tuple[str, Function]] = []
    for m in members:
        if isinstance(m, Function):
            out.append((path, m))
        elif isinstance(m, Class):
            out += _functions(f"{path}.{m.name}", list(m.members.values()))
    return out


def _is_marker(index: Index, module: str, d: Decorator) -> bool:
    found = index.name(module, d.path.removeprefix(f"{module}."))
    if found is None or not isinstance(found.obj, Attribute) or not found.obj.value:
        return d.name == "hookspec"
    node = parse(found.obj.value)
    made = index.name(found.module, ast.unparse(node.func)) if isinstance(node, ast.Call) else None
    return made is not None and made.path.endswith("HookspecMarker")


def _flags(marker: Decorator) -> set[str]:
    node = parse(marker.text)
    given = node.keywords if isinstance(node, ast.Call) else []
    return {k.arg for k in given if k.arg and not (isinstance(k.value, ast.Constant) and not k.value.value)}


def check_hooks(ctx: Context) -> set[str]:
    """All hook rules. Returns the paths of functions that are hooks, which the Python rules leave alone."""
    before, now = specs(ctx.old), specs(ctx.new)
    for name, spec in before.items():
        ctx.within(spec.found)
        if name in now:
            _compare(ctx, spec, now[name])
        elif not removal_allowed(ctx, spec.found):
            _removed(ctx, spec, [n for n in now if n not in before])
    ctx.outside()
    check_calls(ctx, [name for name in before if name in now])
    _projects(ctx)
    return {s.found.path for s in before.values()}


def _removed(ctx: Context, spec: Spec, fresh: list[str]) -> None:
    name = spec.function.name
    near = difflib.get_close_matches(name, fresh, 1, 0.5)
    there = ctx.new.find(spec.found.path)
    lost = there is not None and isinstance(there.obj, Function)
    why = f"plugins that implement {name} are refused by check_pending(), or never called"
    ctx.emit(
        "HK001",
        spec.found.path,
        old=spell(name, spec.function.params),
        new=near[0] if near and not lost else "",
        at=ctx.survivor(spec.found.path),
        was=ctx.old_place(spec.found),
        why=f"its marker is gone: {why}" if lost else why,
        fix="put the marker back"
        if lost
        else f"keep {name} with warn_on_impl for the deprecation window, and call both",
    )


def _compare(ctx: Context, old: Spec, new: Spec) -> None:
    path = old.found.path
    at, was = ctx.new_place(new.found), ctx.old_place(old.found)
    mine, theirs = bound(old.function), bound(new.function)
    now, had = {p.name: p for p in theirs}, {p.name for p in mine}
    fresh = [n for n in now if n not in had]
    for p in mine:
        if p.name not in now:
            near = fresh[0] if len(fresh) == 1 else ""
            ctx.emit(
                "HK002",
                f"{path}({p.name})",
                old=spell(old.function.name, mine),
                new=spell(new.function.name, theirs),
                at=at,
                was=was,
                why=f"pluggy refuses plugins that take {p.name}" + (f"; it is now {near}" if near else ""),
                fix=f"pass both {p.name} and {near}, with warn_on_impl_args" if near else f"keep passing {p.name}",
                cause=f"rename:{p.name}->{near}" if near else "",
            )
        elif p.default is None and now[p.name].default is not None and _old_pluggy(ctx):
            ctx.emit(
                "HK006",
                f"{path}({p.name})",
                old=p.name,
                new=f"{p.name}={now[p.name].default}",
                at=at,
                was=was,
                why="pluggy before 1.7 refuses implementations that take an argument whose specification has a default",
                fix="require pluggy>=1.7, or leave out the default",
            )
    for name in fresh:
        if len(had - set(now)) != 1 or len(fresh) != 1:
            ctx.emit(
                "HK009",
                f"{path}({name})",
                old="",
                new=name,
                at=at,
                was=was,
                why="plugins may take it",
                fix="mention it in the changelog",
            )
    for rule, a, b, word in (
        ("HK003", old.firstresult, new.firstresult, "firstresult"),
        ("HK004", old.historic, new.historic, "historic"),
    ):
        if a != b:
            effect = {
                "HK003": "callers get one value instead of a list" if b else "callers get a list instead of one value",
                "HK004": "call_historic() is refused, and plugins registered later are not called"
                if a
                else "a plain call is refused; results are not returned",
            }[rule]
            ctx.emit(
                rule,
                path,
                old=f"{word}={a}",
                new=f"{word}={b}",
                at=at,
                was=was,
                why=effect,
                fix=f"keep {word}={a}, and add a new hook for the other contract",
            )
    check_return(ctx, old.found, new.found)
    if is_deprecated(new.found) and not new.warns:
        ctx.emit(
            "HK010",
            path,
            old="",
            new="deprecated",
            at=at,
            was=was,
            why="implementers get no warning",
            fix="add warn_on_impl=DeprecationWarning(...)",
        )


def _old_pluggy(ctx: Context) -> bool:
    """Does the new release declare that it runs with a pluggy before 1.7?"""
    for text in ctx.new.snapshot.surfaces.project.requires:
        if text.replace(" ", "").lower().startswith("pluggy"):
            floors = [part.split(">=")[1] for part in text.replace(" ", "").split(",") if ">=" in part]
            return not any(at_least(f, "1.7") for f in floors)
    return False


def _projects(ctx: Context) -> None:
    """HK005: the project name ties plugins' markers to the manager."""
    old = {g.name: g for g in ctx.old.snapshot.surfaces.groups if g.kind == "hooks"}
    new = {g.name: g for g in ctx.new.snapshot.surfaces.groups if g.kind == "hooks"}
    for name, use in sorted(old.items()):
        if name in new:
            continue
        place = next(((g.file, g.line) for g in new.values()), ctx.survivor(ctx.old.package))
        ctx.emit(
            "HK005",
            f"hook-project:{name}",
            old=name,
            new=", ".join(sorted(new)),
            at=place,
            was=(use.file, use.line),
            why=f"implementations marked HookimplMarker({name!r}) are no longer found",
            fix=f"keep the project name {name!r}",
        )
