"""PY008 and the dispatch from an old public object to the rules that compare it with its counterpart."""

from __future__ import annotations

import ast

from moeframe_compat.index.classes import constructor
from moeframe_compat.index.lookup import Found, parse
from moeframe_compat.index.signatures import callable_params, effective
from moeframe_compat.index.values import Symbol, evaluate
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Attribute, Class, Function, Module
from moeframe_compat.rules.annotations import check_annotations
from moeframe_compat.rules.callables import check_callable
from moeframe_compat.rules.classes import check_class
from moeframe_compat.rules.constants import check_constant
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.contracts import check_cache
from moeframe_compat.rules.deprecated import check_tier, check_window
from moeframe_compat.rules.enums import check_plain_named_tuple
from moeframe_compat.rules.params import Call, ParamCheck, check_function


def compare(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    """Compare one public object with what stands in its place."""
    check_tier(ctx, path, old, new)
    if isinstance(old.obj, Function):
        _function(ctx, path, old, new, shims)
    elif isinstance(old.obj, Class):
        _class(ctx, path, old, new, shims)
    elif isinstance(old.obj, Attribute):
        _variable(ctx, path, old, new, shims)


def _function(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    assert isinstance(old.obj, Function)
    if isinstance(new.obj, Function):
        check_window(ctx, path, old, new)
        check_function(ctx, path, old, new, shims)
        check_callable(ctx, path, old, new)
        check_annotations(ctx, path, old, new)
    elif isinstance(new.obj, Class):
        _function_to_class(ctx, path, old, new)
    elif isinstance(new.obj, Attribute):
        params = callable_params(ctx.new, new)
        if params is not None:
            _parameters(ctx, path, old, new, shims, effective(ctx.old, old), params)
        elif new.obj.value is not None and _not_callable(ctx, new):
            _kind(ctx, path, old, new, "function", "constant", "calling it raises TypeError")
    elif isinstance(new.obj, Module):
        _kind(ctx, path, old, new, "function", "module", "calling it raises TypeError")


_MANAGERS = (("contextmanager", ("__enter__", "__exit__")), ("asynccontextmanager", ("__aenter__", "__aexit__")))


def _has(ctx: Context, cls: Found, *names: str) -> bool:
    return all(ctx.new.member(cls, name) is not None for name in names)


def _function_to_class(ctx: Context, path: str, old: Found, new: Found) -> None:
    """Compatible only where the function promised an instance of that class, or of one of its ancestors."""
    assert isinstance(old.obj, Function)
    promised = (old.obj.returns or "").strip("'\"").split("[", 1)[0]
    ancestors = {c.path.rpartition(".")[2] for c in ctx.new.mro(new)}
    made = {s.removeprefix("call:") for s in old.obj.body.returns if s.startswith("call:")}
    if promised and promised.rpartition(".")[2] in ancestors:
        return
    if (
        not promised
        and made
        and all(m.rpartition(".")[2].lstrip("_") in {a.lstrip("_") for a in ancestors} for m in made)
    ):
        return
    if any(old.obj.decorated(d) and _has(ctx, new, *names) for d, names in _MANAGERS):
        return  # `with` is all that it was for
    _kind(ctx, path, old, new, "function", "class", "the call returns an instance instead of the function's result")


def _class(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    if isinstance(new.obj, Class):
        check_window(ctx, path, old, new)
        check_class(ctx, path, old, new, shims)
        return
    if isinstance(new.obj, Function):
        made = constructor(ctx.old, old)
        if made.known:
            _parameters(ctx, f"{path}.__init__", old, new, shims, made.params, effective(ctx.new, new))
        ctx.emit(
            "PY008",
            path,
            old="class",
            new="function",
            at=ctx.new_place(new),
            was=ctx.old_place(old),
            severity="info",
            policy="a class may become a factory that takes the same call",
            why="subclassing it and isinstance() raise TypeError",
            fix="keep a class if others subclass it",
        )
    elif isinstance(new.obj, Attribute) and new.obj.value is not None:
        if _not_callable(ctx, new):
            _kind(ctx, path, old, new, "class", "constant", "calling it raises TypeError")
        elif isinstance(parse(new.obj.value), (ast.Subscript, ast.BinOp)):
            _kind(ctx, path, old, new, "class", "type alias", "its members, subclassing and isinstance() fail")
        else:
            params = callable_params(ctx.new, new)
            made = constructor(ctx.old, old)
            if params is not None and made.known:
                _parameters(ctx, f"{path}.__init__", old, new, shims, made.params, params)
    elif isinstance(new.obj, Module):
        _kind(ctx, path, old, new, "class", "module", "calling it raises TypeError")


def _variable(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    if check_plain_named_tuple(ctx, path, old, new):
        return
    if isinstance(new.obj, Attribute):
        before, now = callable_params(ctx.old, old), callable_params(ctx.new, new)
        if before is not None and now is not None:
            _parameters(ctx, path, old, new, shims, before, now)
        else:
            check_constant(ctx, path, old, new)
        return
    check_cache(ctx, path, old, new)
    before = callable_params(ctx.old, old)
    if before is not None:
        now = callable_params(ctx.new, new)
        if now is not None:
            _parameters(ctx, path, old, new, shims, before, now)
        return
    if _not_callable(ctx, old, side="old") and isinstance(new.obj, (Function, Class, Module)):
        word = type(new.obj).__name__.lower()
        _kind(ctx, path, old, new, "constant", word, f"code that uses its value gets a {word}")


def _not_callable(ctx: Context, found: Found, side: str = "new") -> bool:
    assert isinstance(found.obj, Attribute)
    if found.obj.value is None:
        return False
    index = ctx.new if side == "new" else ctx.old
    value = evaluate(index, found.path.rpartition(".")[0], found.obj.value)
    if isinstance(value, Symbol) and value.kind == "call":
        made = index.find(value.path)
        known_class = made is not None and isinstance(made.obj, Class) and not index.open_bases(made)
        return known_class and made is not None and index.member(made, "__call__") is None
    return not isinstance(value, Symbol) and parse(found.obj.value) is not None


def _parameters(ctx: Context, path: str, old: Found, new: Found, shims: Shims, before: list, now: list) -> None:  # type: ignore[type-arg]
    call = Call(
        path,
        before,
        now,
        ctx.new_place(new),
        ctx.old_place(old),
        old.path.rpartition(".")[0],
        new.path.rpartition(".")[0],
        target=new,
        new_body=new.obj.body if isinstance(new.obj, Function) else None,
    )
    ParamCheck(ctx, call, shims).run()


def _kind(ctx: Context, path: str, old: Found, new: Found, was: str, now: str, why: str) -> None:
    ctx.emit(
        "PY008",
        path,
        old=was,
        new=now,
        at=ctx.new_place(new),
        was=ctx.old_place(old),
        why=why,
        fix=f"keep a {was} of this name, and give the {now} another",
    )
