"""What a decorator puts in place of the function it decorates."""

from __future__ import annotations

import ast

from moeframe_compat.extract.bodies import FunctionNode
from moeframe_compat.extract.names import dotted
from moeframe_compat.model.objects import Param, Wrapper


def read_wrapper(node: FunctionNode) -> Wrapper | None:
    """The innermost function that `node` returns, if it calls the function that `node` (or a level of it) was given."""
    chain: list[FunctionNode] = [node]
    while True:
        inner = _returned(chain[-1])
        if inner is None:
            break
        chain.append(inner)
    if len(chain) == 1:
        return None
    outer, inner = chain[-2], chain[-1]
    if not outer.args.args:
        return None
    decorated = outer.args.args[0].arg
    call = next(
        (
            n
            for n in ast.walk(inner)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == decorated
        ),
        None,
    )
    return None if call is None else _describe(inner, call)


def _returned(node: FunctionNode) -> FunctionNode | None:
    """The nested function that is returned, bare or through `wraps(fn)(inner)` and the like."""
    nested = {s.name: s for s in node.body if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef))}
    for s in node.body:
        if isinstance(s, ast.Return) and s.value is not None:
            value = s.value
            if isinstance(value, ast.Call) and value.args:
                value = value.args[0]
            name = dotted(value)
            if name in nested:
                return nested[name]
    return None


def _describe(inner: FunctionNode, call: ast.Call) -> Wrapper:
    args = inner.args
    params: list[Param] = []
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for a, d in zip(positional, defaults, strict=True):
        kind = "po" if a in args.posonlyargs else "pk"
        params.append(Param(a.arg, kind, None if d is None else ast.unparse(d)))
    if args.vararg:
        params.append(Param(args.vararg.arg, "va"))
    for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        params.append(Param(a.arg, "ko", None if d is None else ast.unparse(d)))
    if args.kwarg:
        params.append(Param(args.kwarg.arg, "vk"))
    own = {p.name for p in params}
    lead = []
    for given in call.args:
        if isinstance(given, ast.Starred):
            break
        lead.append(given.id if isinstance(given, ast.Name) and given.id in own else "")
    return Wrapper(
        params,
        lead,
        star=any(isinstance(a, ast.Starred) for a in call.args),
        names=any(k.arg is None for k in call.keywords),
    )
