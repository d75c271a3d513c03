"""What a module does to its own namespace: `__all__`, lazy exports, `sys.modules` tricks, dynamic names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from moeframe_compat.extract.names import dotted
from moeframe_compat.extract.statements import scoped_statements
from moeframe_compat.model.objects import Module


def read_module_tricks(module: Module, tree: ast.Module) -> None:
    """Fill `exports`, `lazy`, `replaced` and `dynamic` of a module."""
    for scoped in scoped_statements(tree.body):
        node = scoped.node
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            _assignment(module, node, tree)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            _call(module, node.value, tree)
        elif isinstance(node, ast.FunctionDef) and node.name == "__getattr__":
            module.lazy = sorted(set(module.lazy) | set(_lazy_names(node, tree)))
    exports = module.members.pop("__all__", None)
    if exports is not None and module.exports is None:
        module.dynamic.append("__all__")


def _assignment(module: Module, node: ast.Assign | ast.AnnAssign | ast.AugAssign, tree: ast.Module) -> None:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id == "__all__" and node.value is not None:
            _export(module, node.value, tree, fresh=not isinstance(node, ast.AugAssign))
        elif isinstance(target, ast.Tuple) and any(dotted(e) == "__getattr__" for e in target.elts):
            _lazy_attach(module, node.value)
        elif isinstance(target, ast.Subscript) and dotted(target.value) == "sys.modules":
            key = target.slice
            named = _module_key(key, module)
            if named and node.value is not None:
                module.replaced[named] = ast.unparse(node.value)
            elif dotted(key) == "__name__":
                module.dynamic.append("sys.modules[__name__]")
        elif isinstance(target, ast.Subscript) and ast.unparse(target.value) == "globals()":
            module.dynamic.append("globals()")


def _module_key(key: ast.expr, module: Module) -> str:
    """The name a key of `sys.modules` spells: a constant, `__name__ + ".x"` or f"{__name__}.x"; "" for others."""
    if isinstance(key, ast.Constant):
        return str(key.value)
    if isinstance(key, ast.BinOp) and dotted(key.left) == "__name__" and isinstance(key.right, ast.Constant):
        return f"{module.path}{key.right.value!s}"
    if isinstance(key, ast.JoinedStr) and len(key.values) == 2:
        first, last = key.values
        if (
            isinstance(first, ast.FormattedValue)
            and dotted(first.value) == "__name__"
            and isinstance(last, ast.Constant)
        ):
            return f"{module.path}{last.value!s}"
    return ""


def _call(module: Module, call: ast.Call, tree: ast.Module) -> None:
    name = dotted(call.func) or ""
    if name in ("__all__.extend", "__all__.append") and call.args:
        _export(module, call.args[0], tree, fresh=False)
    elif name == "__all__.remove" and module.exports and isinstance(call.args[0], ast.Constant):
        module.exports = [e for e in module.exports if e != call.args[0].value]
    elif name == "sys.modules.setdefault" and len(call.args) == 2 and isinstance(call.args[0], ast.Constant):
        module.replaced[str(call.args[0].value)] = ast.unparse(call.args[1])
    elif name == "exec" or ast.unparse(call.func) == "globals().update":
        module.dynamic.append(name or "globals()")
    elif name == "setattr" and call.args and ast.unparse(call.args[0]).startswith("sys.modules["):
        module.dynamic.append("setattr")


def _export(module: Module, value: ast.expr, tree: ast.Module, *, fresh: bool) -> None:
    names = list(strings(value, tree))
    if fresh or module.exports is None:
        module.exports = []
    module.exports.extend(n for n in names if n not in module.exports)
    for node in ast.walk(value):
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)) or dotted(node) in ("dir", "globals"):
            module.dynamic.append("__all__")
            module.exports = None
            return


def strings(value: ast.expr, tree: ast.Module, depth: int = 0) -> Iterator[str]:  # noqa: C901, PLR0912 - node types
    """String constants in a list, tuple, set, sum of them, the keys of a dict, or names bound to such."""
    if isinstance(value, ast.Constant):
        if isinstance(value.value, str):
            yield value.value
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set)):
        for e in value.elts:
            yield from strings(e, tree, depth)
    elif isinstance(value, ast.Starred):
        yield from strings(value.value, tree, depth)
    elif isinstance(value, ast.Attribute) and value.attr == "__all__":
        yield f"*{dotted(value.value) or ''}"
    elif isinstance(value, ast.BinOp):
        yield from strings(value.left, tree, depth)
        yield from strings(value.right, tree, depth)
    elif isinstance(value, ast.Dict):
        for key, v in zip(value.keys, value.values, strict=True):
            yield from strings(v if key is None else key, tree, depth)
    elif isinstance(value, ast.Call) and value.args:
        yield from strings(value.args[0], tree, depth)
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        yield from strings(value.func.value, tree, depth)
    elif isinstance(value, ast.Name) and depth < 4:
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if any(dotted(t) == value.id for t in targets):
                    yield from strings(node.value, tree, depth + 1)


def _lazy_names(node: ast.FunctionDef, tree: ast.Module) -> Iterator[str]:
    """Names that a module's `__getattr__` may answer: compared strings, and keys of the tables it looks into."""
    asked = node.args.args[0].arg if node.args.args else ""
    for n in ast.walk(node):
        if isinstance(n, ast.Compare) and dotted(n.left) == asked:
            for c in n.comparators:
                yield from strings(c, tree)
        elif isinstance(n, ast.Subscript) and dotted(n.slice) == asked:
            yield from strings(n.value, tree)
        elif isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in ("get", "pop"):
            if n.args and dotted(n.args[0]) == asked:
                yield from strings(n.func.value, tree)
        elif isinstance(n, ast.match_case):
            yield from (
                p.value.value
                for p in ast.walk(n.pattern)
                if isinstance(p, ast.MatchValue)
                and isinstance(p.value, ast.Constant)
                and isinstance(p.value.value, str)
            )


def _lazy_attach(module: Module, value: ast.expr | None) -> None:
    """`lazy_loader.attach(__name__, submodules=[...], submod_attrs={"mod": ["a", "b"]})`."""
    for n in ast.walk(value) if value is not None else ():
        if isinstance(n, ast.keyword) and n.arg == "submod_attrs" and isinstance(n.value, ast.Dict):
            for v in n.value.values:
                module.lazy.extend(
                    c.value for c in ast.walk(v) if isinstance(c, ast.Constant) and isinstance(c.value, str)
                )
