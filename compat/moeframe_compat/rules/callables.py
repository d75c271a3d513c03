"""PY009, PY113-PY115, PY120: what kind of callable it is, and what it raises."""

from __future__ import annotations

from moeframe_compat.index.annotations import alternatives, covers
from moeframe_compat.index.builtin_types import is_exception, is_subtype
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.model.objects import Class, Function, Param, Raise
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.contracts import check_contracts
from moeframe_compat.rules.deprecated import is_deprecated, removal_allowed

_ITERATORS = ("Iterator", "Iterable", "Generator", "AsyncIterator", "AsyncGenerator", "AsyncIterable")
_AWAITABLES = ("Awaitable", "Coroutine", "Future", "Task")


def check_callable(ctx: Context, path: str, old: Found, new: Found, *, others: bool = False) -> None:
    """Everything about a function except its parameters and annotations. `others`: users of the package write it."""
    assert isinstance(old.obj, Function)
    assert isinstance(new.obj, Function)
    if _stub(ctx, path, old, new):
        return
    _async(ctx, path, old, new, "PA009" if others else "PY114")
    _generator(ctx, path, old, new)
    check_contracts(ctx, path, old, new)
    _overloads(ctx, path, old, new)
    _raises(ctx, path, old, new)
    _shape(ctx, path, old, new)
    _dict_keys(ctx, path, old, new)


_STATE = ("state_dict", "load_state_dict")
"""The rules of checkpoints look at these."""


_UNLIKE = ({"tuple", "dict"}, {"list", "dict"}, {"tuple", "set"}, {"list", "set"}, {"dict", "set"})
"""Kinds of results that cannot stand in for one another."""


def _shape(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PY112 where nothing is annotated: tuples of another length, dicts without a key, no result at all."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    if a.body.yields or b.body.yields or b.body.trivial or b.abstract or b.body.stub or a.is_async != b.is_async:
        return
    before, now = set(a.body.returns), set(b.body.returns)
    why = ""
    if len(before) == len(now) == 1:
        (was,), (is_,) = before, now
        if was.startswith("tuple:") and is_.startswith("tuple:") and was != is_:
            why = "unpacking its result raises ValueError"
        if a.returns is None and {was.partition(":")[0], is_.partition(":")[0]} in _UNLIKE:
            why = f"its result is a {is_.partition(':')[0]} now: unpacking and subscripts give something else or fail"
        if was.startswith("dict:") and is_.startswith("dict:"):
            gone = sorted(set(was[5:].split(",")) - set(is_[5:].split(",")))
            if a.binding == "method" and a.name in _STATE:
                return  # its keys are those of checkpoints
            why = f"its result has no {', '.join(map(repr, gone))} any more: KeyError" if gone else ""
    promised = a.returns not in (None, "None") or any(not s.startswith(("call:", "await")) for s in before)
    if before and promised and "none" not in before and now <= {"none"}:  # `return f()` may be None all along
        why = "it returns None now"
    if why:
        ctx.emit(
            "PY112",
            path,
            old=f"returns {', '.join(sorted(before))}",
            new=f"returns {', '.join(sorted(now)) or 'nothing'}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=why,
            fix="keep the shape of the result; offer the other under a new name",
        )


def _dict_keys(ctx: Context, path: str, old: Found, new: Found) -> None:
    """CF002 for a dict argument: a key that was read is read under another name, and the old one nowhere."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    if a.binding == "method" and a.name in _STATE:
        return
    for param, keys in a.body.param_keys.items():
        now = b.body.param_keys.get(param, [])
        lost = [k for k in keys if k not in now]
        fresh = [k for k in now if k not in keys]
        sources = ctx.new.snapshot.sources
        if sources is None or not fresh:
            continue
        for name in lost:
            if any(f"'{name}'" in t or f'"{name}"' in t for t in map(sources.text, sources) if t):
                continue
            ctx.emit(
                "CF002",
                f"{path}({param})",
                old=name,
                new=fresh[0],
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                kind="silent",
                audience=("caller", "recipe"),
                why=f"{param}[{name!r}] is no longer read; it is now {fresh[0]!r}",
                fix=f"read {name!r} too, with a DeprecationWarning",
                cause=f"rename:{name}->{fresh[0]}",
            )


def _stub(ctx: Context, path: str, old: Found, new: Found) -> bool:
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    if not b.body.stub or a.body.stub or b.abstract or a.body.trivial or a.abstract:
        return False
    if is_deprecated(old) and removal_allowed(ctx, old):
        return True
    error = b.body.raises[-1].error if b.body.raises else "an error"
    ctx.emit(
        "PY009",
        path,
        old="works",
        new=f"raises {error}",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=f"every call raises {error}",
        fix="keep it working until its announced removal",
    )
    return True


def _async(ctx: Context, path: str, old: Found, new: Found, code: str) -> None:
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    if a.is_async == b.is_async:
        return
    if a.is_async and _returns_awaitable(ctx.new, new, b):
        return
    if b.is_async and _returns_awaitable(ctx.old, old, a):
        return
    words = ("async def", "def") if a.is_async else ("def", "async def")
    effect = "`await` on its result raises TypeError" if a.is_async else "callers get a coroutine that never runs"
    ctx.emit(
        code,
        path,
        old=words[0],
        new=words[1],
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=effect,
        fix=f"keep it {words[0]}, and add the other form under a new name",
    )


def _returns_awaitable(index: Index, found: Found, function: Function) -> bool:
    head = (function.returns or "").split("[", 1)[0].rsplit(".", 1)[-1].strip("'\"")
    if head in _AWAITABLES:
        return True
    shapes = [s for s in function.body.returns if s != "none"]
    return bool(shapes) and all(_calls(index, found, s, want="async") for s in shapes)


def _calls(index: Index, found: Found, shape: str, *, want: str) -> bool:
    """Does a returned expression call a coroutine function or generator, or a standard maker of iterators?"""
    if shape == "generator":
        return want == "generator"
    name = shape.removeprefix("call:")
    if not shape.startswith("call:") or not name:
        return False
    if want == "generator" and name in ("iter", "map", "filter", "zip", "enumerate", "reversed", "chain"):
        return True
    if name.startswith("self."):
        name = name.removeprefix("self.")
        target = index.find(f"{found.path.rpartition('.')[0]}.{name}")
    else:
        target = index.name(found.module, name)
    if target is not None and target.external:
        return (want == "generator" and target.path.startswith("itertools.")) or (
            want == "async" and target.path.startswith("asyncio.")
        )
    made = target.obj if target is not None else None
    return isinstance(made, Function) and (made.is_async if want == "async" else made.body.yields)


def _generator(ctx: Context, path: str, old: Found, new: Found) -> None:
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    managers = ("contextmanager", "asynccontextmanager", "fixture")
    if (
        a.body.yields == b.body.yields
        or a.decorated(*managers)
        or b.decorated(*managers)
        or a.body.trivial
        or b.body.trivial
    ):
        return
    if b.body.yields:
        head = (a.returns or "").split("[", 1)[0].rsplit(".", 1)[-1].strip("'\"")
        shapes = [s for s in a.body.returns if s != "none"]
        if head in _ITERATORS or (shapes and all(_calls(ctx.old, old, s, want="generator") for s in shapes)):
            return
        ctx.emit(
            "PY115",
            path,
            old="returns a value",
            new="generator",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why="callers get a generator: no len(), no index, used up after one pass, and nothing runs before it",
            fix="keep returning the collection; offer the generator under a new name",
        )
        return
    head = (a.returns or "").split("[", 1)[0].rsplit(".", 1)[-1].strip("'\"")
    shapes = [s for s in b.body.returns if s != "none"]
    if head in ("Iterable", "AsyncIterable") or (
        shapes and all(_calls(ctx.new, new, s, want="generator") for s in shapes)
    ):
        return
    ctx.emit(
        "PY115",
        path,
        old="generator",
        new="returns a value",
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why="next(), send() and close() on its result raise; the work is no longer lazy",
        fix="keep it a generator, or return iter(...)",
    )


def _unbound(params: list[Param]) -> list[Param]:
    """Without what a method is bound to."""
    return params[1:] if params and params[0].name.strip("_") in ("self", "cls") else params


def _place_of(number: int, p: Param) -> str:
    """What a caller means a parameter by: its position where it has no name for callers."""
    return f"#{number}" if p.kind == "po" else p.name


def _overloads(ctx: Context, path: str, old: Found, new: Found) -> None:
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    signatures = b.overloads or [b.params]
    for overload in a.overloads:
        given = {_place_of(i, p): p for i, p in enumerate(_unbound(overload))}
        types = {n: alternatives(ctx.old, old.module, p.annotation) for n, p in given.items()}
        fits = False
        for signature in signatures:
            taken = dict(enumerate(_unbound(signature)))
            named = {p.name: p for p in taken.values()} | {f"#{i}": p for i, p in taken.items() if p.positional}
            have = {n: alternatives(ctx.new, new.module, p.annotation) for n, p in named.items()}
            answers = [covers(ctx.new, have.get(n), t) for n, t in types.items() if n in have and t is not None]
            required = [p for i, p in taken.items() if p.required and p.name not in types and f"#{i}" not in types]
            missing = [n for n in types if n not in have] if not any(p.kind == "vk" for p in signature) else []
            fits = fits or (False not in answers and not required and not missing)
        if not fits:
            shown = ", ".join(f"{p.name}: {p.annotation}" for p in overload)
            ctx.emit(
                "PY113",
                path,
                old=f"overload ({shown})",
                new="",
                at=ctx.new_place(new),
                was=ctx.old_place(old),
                why=f"type checkers refuse calls with ({shown})",
                fix="keep the overload",
            )


def _raises(ctx: Context, path: str, old: Found, new: Found) -> None:
    """PY120: where an exception was raised, another one is that the old `except` does not catch."""
    a, b = old.obj, new.obj
    assert isinstance(a, Function)
    assert isinstance(b, Function)
    kept = {_error(ctx.new, new, r) for r in b.body.raises}
    for r in a.body.raises:
        was = _error(ctx.old, old, r)
        if (
            not was
            or was in kept
            or r.error == "AssertionError"
            or was.endswith(("NotImplementedError", "StopIteration"))
        ):
            continue
        successor = next(
            (
                n
                for n in b.body.raises
                if n.guard == r.guard and (n.args == r.args or r.guard or len(a.body.raises) == 1)
            ),
            None,
        )
        now = _error(ctx.new, new, successor) if successor else ""
        if not now or _caught(ctx, was, now) is not False:
            continue
        ctx.emit(
            "PY120",
            path,
            old=f"raises {r.error}",
            new=f"raises {successor.error if successor else ''}",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            why=f"`except {r.error}` no longer catches it",
            fix=f"derive {now.rpartition('.')[2]} from {r.error} as well",
        )


def _error(index: Index, found: Found, r: Raise) -> str:
    target = index.name(found.module, r.error)
    return target.path if target is not None and (target.external or isinstance(target.obj, Class)) else ""


def _caught(ctx: Context, was: str, now: str) -> bool | None:
    """Is the new exception one of the old kind?"""
    if was == now or was.rpartition(".")[2] == now.rpartition(".")[2]:
        return True
    found = ctx.new.find(now)
    if found is not None and isinstance(found.obj, Class):
        names = {c.path for c in ctx.new.mro(found)}
        if was in names or {p.rpartition(".")[2] for p in names} & {was.rpartition(".")[2]}:
            return True
        return None if ctx.new.open_bases(found) else False
    return is_subtype(now, was) if is_exception(now) else None
