"""How a function is really called: decorators of the package, partials and lambdas taken into account."""

from __future__ import annotations

import ast
from dataclasses import replace

from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.model.objects import Attribute, Class, Function, Param, Wrapper


def bound(function: Function, params: list[Param] | None = None) -> list[Param]:
    """Parameters without the one that binding fills in."""
    given = function.params if params is None else params
    drops = function.binding in ("method", "class") and given and given[0].kind in ("po", "pk")
    return given[1:] if drops else list(given)


def effective(index: Index, found: Found) -> list[Param]:
    """Parameters a caller sees."""
    assert isinstance(found.obj, Function)
    params = bound(found.obj)
    for d in reversed(found.obj.decorators):
        relative = d.path.removeprefix(f"{found.module}.")
        maker = index.name(found.module, relative) if relative else None
        if maker is not None and isinstance(maker.obj, Function) and maker.obj.wraps is not None:
            params = _wrapped(maker.obj.wraps, params, found.obj)
    return params


def _wrapped(wrapper: Wrapper, params: list[Param], function: Function) -> list[Param]:
    own = [p for p in wrapper.params if not p.variadic]
    if not wrapper.star and not wrapper.names and own:
        return own[1:] if function.binding == "method" else own
    lead = len(wrapper.lead)
    if function.binding in ("method", "class") and lead:
        lead -= 1  # self is passed on
        own = [p for p in own if p.name != wrapper.lead[0]]
    rest = params[lead:] if lead > 0 else params
    names = {p.name for p in own}
    first = [p for p in own if p.kind in ("po", "pk")]
    later = [p for p in own if p.kind == "ko"]
    rest = [p for p in rest if p.name not in names]
    tail = [p for p in rest if p.kind == "vk"]
    return [*first, *(p for p in rest if p.kind != "vk"), *later, *tail]


def callable_value(index: Index, found: Found) -> list[Param] | None:
    """Parameters of a variable that holds something callable: a partial, a lambda, or a decorated function."""
    assert isinstance(found.obj, Attribute)
    node = parse(found.obj.value) if found.obj.value else None
    if isinstance(node, ast.Lambda):
        return _lambda(node)
    if isinstance(node, ast.Call):
        callee = index.name(found.module, ast.unparse(node.func)) if _dotted(node.func) else None
        target = index.name(found.module, ast.unparse(node.args[0])) if node.args and _dotted(node.args[0]) else None
        if target is None or not isinstance(target.obj, Function):
            return None
        params = effective(index, target)
        if callee is not None and callee.path in ("functools.partial", "functools.partialmethod"):
            return _partial(params, node)
        if callee is not None and isinstance(callee.obj, Function) and callee.obj.wraps is not None:
            return _wrapped(callee.obj.wraps, params, target.obj)
        return params if callee is not None and callee.external else None
    return None


def _dotted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _lambda(node: ast.Lambda) -> list[Param]:
    args = node.args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    out = [Param(a.arg, "pk", None if d is None else ast.unparse(d)) for a, d in zip(positional, defaults, strict=True)]
    out += [Param(args.vararg.arg, "va")] if args.vararg else []
    out += [
        Param(a.arg, "ko", None if d is None else ast.unparse(d))
        for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    return out + ([Param(args.kwarg.arg, "vk")] if args.kwarg else [])


def _partial(params: list[Param], node: ast.Call) -> list[Param]:
    fixed = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg}
    out: list[Param] = []
    named = False
    for p in params[len(node.args) - 1 :]:
        named = named or p.name in fixed
        kind = "ko" if named and p.kind == "pk" else p.kind
        out.append(replace(p, kind=kind, default=fixed.get(p.name, p.default)))
    return out


def callable_params(index: Index, found: Found) -> list[Param] | None:
    """Parameters of a function, or of a variable holding a callable; None for anything else."""
    if isinstance(found.obj, Function) and found.obj.role == "function":
        return effective(index, found)
    if isinstance(found.obj, Attribute):
        return callable_value(index, found)
    if isinstance(found.obj, Class):
        from moeframe_compat.index.classes import constructor

        made = constructor(index, found)
        return made.params if made.known else None
    return None


def spell(name: str, params: list[Param]) -> str:
    """A signature as people write it, annotations left out."""
    parts: list[str] = []
    starred = False
    for i, p in enumerate(params):
        if p.kind == "ko" and not starred:
            parts.append("*")
            starred = True
        starred = starred or p.kind == "va"
        text = {"va": "*", "vk": "**"}.get(p.kind, "") + p.name
        parts.append(f"{text}={p.default}" if p.default is not None else text)
        if p.kind == "po" and (i + 1 == len(params) or params[i + 1].kind != "po"):
            parts.append("/")
    text = ", ".join(parts)
    return f"{name}({text if len(text) <= 160 else text[:157] + '...'})"
