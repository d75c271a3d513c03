"""CF001-CF008, CF013: recipe keys, that is, fields of config classes and what the loader does with them."""

from __future__ import annotations

import ast
import re
from typing import Any

from moeframe_compat.index.annotations import alternatives, covers, show
from moeframe_compat.index.classes import Field, fields, is_dataclass
from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Class, Function, Raise
from moeframe_compat.rules.context import Context, Place

_NAMES = re.compile(r"(Config|Cfg|Configuration|Options|Settings|Arguments|Args|Recipe|HParams|Hyperparameters)$")
_SCHEMA = re.compile(r"(^|_)(schema|config|recipe|format)?_?(version|schema|revision)$")


def config_classes(ctx: Context) -> set[str]:
    """Old dataclasses whose fields are recipe keys: given to OmegaConf.structured, named or declared so, or nested."""
    index = ctx.old
    found: set[str] = set()
    pending: list[Found] = []
    for text in index.snapshot.surfaces.structured:
        module, _, name = text.partition(":")
        cls = index.name(module, name)
        pending += [cls] if cls is not None else []
    for path, home in index.modules.items():
        for name, m in home.members.items():
            full = f"{path}.{name}"
            if isinstance(m, Class) and (
                _NAMES.search(name) or full in ctx.options.config_classes or name in ctx.options.config_classes
            ):
                pending.append(Found(full, path, m))
    while pending:
        cls = pending.pop()
        if (
            cls.path in found
            or not isinstance(cls.obj, Class)
            or not any(is_dataclass(index, c) for c in index.mro(cls) if isinstance(c.obj, Class))
        ):
            continue
        found.add(cls.path)
        for f in fields(index, cls):
            for t in alternatives(index, f.module, f.annotation) or ():
                inner = index.find(t.path)
                pending += [inner] if inner is not None else []
    return found


def key_removed(ctx: Context, path: str, new: Found, f: Field, successor: str, shims: Shims) -> None:
    """CF001, CF002, CF003: a key that is gone, unless the loader still takes it."""
    was: Place = (ctx.old.modules[f.module].file, f.line)
    verdict = shims.loader(f.name, successor, path)
    common: dict[str, Any] = {"old": f"{f.name}: {f.annotation}", "at": ctx.new_place(new), "was": was}
    if verdict == "broken":
        return
    if verdict == "works":
        ctx.emit(
            "DP008",
            f"{path}.{f.name}",
            new=successor,
            policy="the loader migrates it",
            why=f"recipes that set {f.name} load, but Python callers of {path.rpartition('.')[2]}({f.name}=...) fail",
            fix=f"let the constructor take {f.name} too, with a warning",
            audience=("caller",),
            cause=f"rename:{f.name}->{successor}" if successor else "",
            **common,
        )
        return
    if successor:
        ctx.emit(
            "CF002",
            f"{path}.{f.name}",
            new=successor,
            why=f"recipes that set {f.name} fail: unknown key",
            fix=f'declare it: [[rename]] surface = "config" old = "{f.name}" new = "{successor}"',
            cause=f"rename:{f.name}->{successor}",
            **common,
        )
        return
    home = _moved_to(ctx, f.name, new)
    if home:
        ctx.emit(
            "CF003",
            f"{path}.{f.name}",
            new=home,
            why=f"recipes that set {f.name} fail: unknown key; it is now {home}",
            fix=f'declare it: [[move]] surface = "config" old = "{f.name}" new = "{home}"',
            cause=f"move:{f.name}->{home}",
            **common,
        )
        return
    ctx.emit(
        "CF001",
        f"{path}.{f.name}",
        new="",
        why=f"recipes that set {f.name} fail: unknown key",
        fix=f'accept and warn until its announced removal: [[remove]] surface = "config" old = "{f.name}"',
        cause=f"field:{f.owner}.{f.name}",
        **common,
    )


def _moved_to(ctx: Context, name: str, new: Found) -> str:
    """`group.name` if a new group below the class (or the class around it) has the key."""
    holders = [(new, "")] + [(Found(p, p.rpartition(".")[0], m), "") for p, m in _all_classes(ctx.new) if p != new.path]
    for cls, _ in holders:
        if not isinstance(cls.obj, Class) or not (cls.path == new.path or _has_field_of(ctx.new, cls, new)):
            continue
        for f in fields(ctx.new, cls):
            for t in alternatives(ctx.new, f.module, f.annotation) or ():
                inner = ctx.new.find(t.path)
                if (
                    inner is not None
                    and isinstance(inner.obj, Class)
                    and any(g.name == name for g in fields(ctx.new, inner))
                ):
                    return f"{f.name}.{name}"
        if cls.path != new.path and any(g.name == name for g in fields(ctx.new, cls)):
            return f"{cls.path.rpartition('.')[2]}.{name}"
    return ""


def _all_classes(index: Index) -> list[tuple[str, Class]]:
    return [
        (f"{p}.{n}", m)
        for p, mod in index.modules.items()
        for n, m in mod.members.items()
        if isinstance(m, Class) and _NAMES.search(n)
    ]


def _has_field_of(index: Index, cls: Found, inner: Found) -> bool:
    return any(
        t.path == inner.path for f in fields(index, cls) for t in alternatives(index, f.module, f.annotation) or ()
    )


def type_changed(ctx: Context, path: str, f: Field, g: Field, at: Place, was: Place, *, config: bool) -> None:
    """CF004 and CF005; for other dataclasses PY110 and PY111."""
    before = alternatives(ctx.old, f.module, f.annotation)
    now = alternatives(ctx.new, g.module, g.annotation)
    if before is None or now is None or before == now:
        return
    if not config:
        from moeframe_compat.rules.annotations import check_accepted

        check_accepted(ctx, f"{path}.{f.name}", f.name, before, now, at, was)
        return
    choices = {t.literal for t in before if t.literal} - {t.literal for t in now if t.literal}
    if choices and any(t.literal for t in now) and not any(t.path == "str" for t in now):
        lost = ", ".join(sorted(c for c in choices if c))
        ctx.emit(
            "CF005",
            f"{path}.{f.name}",
            old=show(before),
            new=show(now),
            at=at,
            was=was,
            why=f"recipes with {f.name}: {lost} fail",
            fix=f"keep accepting {lost} until its announced removal",
        )
        return
    if covers(ctx.new, now, before) is False:
        ctx.emit(
            "CF004",
            f"{path}.{f.name}",
            old=f"{f.name}: {show(before)}",
            new=f"{f.name}: {show(now)}",
            at=at,
            was=was,
            why=f"recipes whose {f.name} is {show(before)} fail",
            fix=f"keep accepting {show(before)}, and convert it in the loader",
        )


def is_schema_number(name: str) -> bool:
    """Does a key say which schema a config follows?"""
    return bool(_SCHEMA.search(name))


def schema_version(ctx: Context, path: str, name: str, before: Any, after: Any, at: Place, was: Place) -> bool:
    """CF013: a schema number that went up; True if the field is one (its default may change)."""
    if (
        not _SCHEMA.search(name)
        or not isinstance(before, int)
        or not isinstance(after, int)
        or isinstance(before, bool)
    ):
        return False
    if not _migrates(ctx):
        ctx.emit(
            "CF013",
            f"{path}.{name}",
            old=str(before),
            new=str(after),
            at=at,
            was=was,
            why=f"recipes of schema {before} are refused or misread, and nothing migrates them",
            fix=f"migrate schema {before} to {after} in the loader",
        )
    return True


def _migrates(ctx: Context) -> bool:
    words = re.compile(r"migrat|upgrade|convert_v|from_v\d|v\d_to_v\d", re.IGNORECASE)
    return any(words.search(n) for m in ctx.new.modules.values() for n in m.members)


def check_validation(ctx: Context) -> None:
    """CF008: a function that loads or checks a config has a new condition that refuses a key it took before."""
    keys = _keys(ctx)
    if not keys:
        return
    for path, module in sorted(ctx.new.modules.items()):
        old_module = ctx.old.modules.get(path)
        if old_module is None:
            continue
        before = _by_name(old_module.members)
        for name, new in _by_name(module.members).items():
            old = before.get(name)
            if old is None and name.endswith(".__post_init__") and name.rpartition(".")[0] in old_module.members:
                old = Function(new.name, old_module.members[name.rpartition(".")[0]].line)  # it did nothing
            if old is None or not _is_loader(ctx, path, new, module.members):
                continue
            had = {key for r in old.body.raises for key in re.findall(r"\w+", r.guard) if key in keys}
            for r in new.body.raises:
                condition = _condition(r)
                key = _mentions(condition, keys)
                if not key or any(r.guard == o.guard for o in old.body.raises):
                    continue
                if key in had and not any(_stricter(o, r) for o in old.body.raises):
                    continue
                ctx.emit(
                    "CF008",
                    f"{keys[key]}.{key}",
                    old="accepted",
                    new=f"refused if {r.guard}",
                    at=(module.file, new.line),
                    was=(old_module.file, old.line),
                    why=f"recipes for which `{r.guard}` fail now",
                    fix="warn for one release before refusing",
                )


def _condition(r: Raise) -> str:
    return r.args if r.error == "AssertionError" else r.guard.rsplit(" and ", 1)[-1]


def _stricter(old: Raise, new: Raise) -> bool:
    """Does the same comparison with a number refuse more: `if n < 0: raise` before, `if n < 1: raise` now?"""
    before, now = parse(_condition(old)), parse(_condition(new))
    if not isinstance(before, ast.Compare) or not isinstance(now, ast.Compare) or old.error != new.error:
        return False
    if len(before.ops) != 1 or len(now.ops) != 1 or ast.unparse(before.left) != ast.unparse(now.left):
        return False
    below, above = (isinstance(now.ops[0], kinds) for kinds in ((ast.Lt, ast.LtE), (ast.Gt, ast.GtE)))
    if new.error == "AssertionError":
        below, above = above, below
    try:
        a, b = ast.literal_eval(before.comparators[0]), ast.literal_eval(now.comparators[0])
        return type(before.ops[0]) is type(now.ops[0]) and bool((below and b > a) or (above and b < a))
    except (ValueError, TypeError):
        return False


def _by_name(members: dict[str, Any], prefix: str = "") -> dict[str, Function]:
    """Functions of a module and of its classes, by qualified name."""
    out: dict[str, Function] = {}
    for name, m in members.items():
        if isinstance(m, Function):
            out[f"{prefix}{name}"] = m
        elif isinstance(m, Class):
            out |= _by_name(dict(m.members), f"{prefix}{name}.")
    return out


def _keys(ctx: Context) -> dict[str, str]:
    """Keys that both releases have, and the class of each."""
    if "keys" not in ctx.scratch:
        out: dict[str, str] = {}
        for path in sorted(ctx.config_paths):
            old, new = ctx.old.find(path), ctx.new.find(path)
            if old is not None and new is not None and isinstance(new.obj, Class):
                kept = {f.name for f in fields(ctx.new, new)}
                out |= {f.name: path for f in fields(ctx.old, old) if f.name in kept and not _SCHEMA.search(f.name)}
        ctx.scratch["keys"] = out
    found: dict[str, str] = ctx.scratch["keys"]
    return found


def _is_loader(ctx: Context, module: str, function: Function, members: dict[str, Any]) -> bool:
    words = (
        "load",
        "validate",
        "check",
        "verify",
        "__post_init__",
        "parse",
        "resolve",
        "from_dict",
        "from_yaml",
        "finalize",
    )
    if any(w in function.name for w in words):
        inside = function.name == "__post_init__"
        return not inside or any(
            isinstance(m, Class) and m.members.get("__post_init__") is function and f"{module}.{n}" in ctx.config_paths
            for n, m in members.items()
        )
    return False


def _mentions(condition: str, keys: dict[str, str]) -> str:
    """The key that a condition reads as an attribute or an item, "" if none."""
    node = parse(condition) if condition else None
    for n in ast.walk(node) if node is not None else ():
        if isinstance(n, ast.Attribute) and n.attr in keys:
            return n.attr
        if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Constant) and n.slice.value in keys:
            return str(n.slice.value)
        if isinstance(n, ast.Call) and n.args and isinstance(n.args[0], ast.Constant) and n.args[0].value in keys:
            return str(n.args[0].value)
    return ""
