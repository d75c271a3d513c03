"""Seeded refactorings that change no behaviour and no API, applied to the source text of one module."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable

Refactor = Callable[[ast.Module, random.Random], bool]


def reformatted(source: str) -> str:
    """The text as a formatter might leave it: other quotes, blank lines, line breaks; comments gone."""
    return ast.unparse(ast.parse(source)) + "\n"


def refactor(source: str, seed: int) -> tuple[str, str]:
    """Apply one refactoring chosen by the seed; returns its name and the new text (the old one if none applies)."""
    rng = random.Random(seed)
    order = list(REFACTORS)
    rng.shuffle(order)
    for name in order:
        tree = ast.parse(source)
        if REFACTORS[name](tree, rng):
            return name, ast.unparse(ast.fix_missing_locations(tree)) + "\n"
    return "nothing", source


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]


def edit_docstring(tree: ast.Module, rng: random.Random) -> bool:
    owners = [
        n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.Module)) and ast.get_docstring(n)
    ]
    if not owners:
        return False
    first = rng.choice(owners).body[0]
    assert isinstance(first, ast.Expr)
    assert isinstance(first.value, ast.Constant)
    first.value.value = "Rewritten. Nothing else changed."
    return True


def rename_local(tree: ast.Module, rng: random.Random) -> bool:
    candidates = []
    for f in _functions(tree):
        params = {a.arg for a in ast.walk(f.args) if isinstance(a, ast.arg)}
        if any(
            isinstance(n, (ast.Global, ast.Nonlocal, ast.FunctionDef, ast.Lambda, ast.ClassDef))
            for s in f.body
            for n in ast.walk(s)
        ):
            continue
        names = {
            t.id for n in ast.walk(f) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        } - params
        imported = {
            a.asname or a.name for n in ast.walk(f) if isinstance(n, (ast.Import, ast.ImportFrom)) for a in n.names
        }
        candidates += [(f, n) for n in sorted(names - imported)]
    if not candidates:
        return False
    function, old = rng.choice(candidates)
    for n in ast.walk(function):
        if isinstance(n, ast.Name) and n.id == old:
            n.id = f"{old}_renamed"
    return True


def swap_functions(tree: ast.Module, rng: random.Random) -> bool:
    """Two neighbouring functions of a class or module, without decorators."""
    places = [
        (owner.body, i)
        for owner in [tree, *(n for n in ast.walk(tree) if isinstance(n, ast.ClassDef))]
        for i in range(len(owner.body) - 1)
        if all(
            isinstance(s, ast.FunctionDef) and not s.decorator_list and not s.args.defaults
            for s in owner.body[i : i + 2]
        )
        and owner.body[i].name != owner.body[i + 1].name  # type: ignore[attr-defined]
    ]
    if not places:
        return False
    body, i = rng.choice(places)
    body[i], body[i + 1] = body[i + 1], body[i]
    return True


def add_private_helper(tree: ast.Module, rng: random.Random) -> bool:
    name = f"_helper_{rng.randrange(1000)}"
    tree.body += ast.parse(f"def {name}(value, *, scale=2):\n    return value * scale\n").body
    return True


def invert_if(tree: ast.Module, rng: random.Random) -> bool:
    found = [
        n
        for f in _functions(tree)
        for n in ast.walk(f)
        if isinstance(n, ast.If) and n.orelse and not isinstance(n.orelse[0], ast.If)
    ]
    if not found:
        return False
    node = rng.choice(found)
    node.test = ast.UnaryOp(ast.Not(), node.test)
    node.body, node.orelse = node.orelse, node.body
    return True


def name_the_result(tree: ast.Module, rng: random.Random) -> bool:
    for f in rng.sample(fs := _functions(tree), len(fs)):
        last = f.body[-1]
        if isinstance(last, ast.Return) and last.value is not None:
            f.body[-1:] = [
                ast.Assign([ast.Name("outcome", ast.Store())], last.value),
                ast.Return(ast.Name("outcome", ast.Load())),
            ]
            return True
    return False


def respell_optional(tree: ast.Module, rng: random.Random) -> bool:
    """`Optional[X]` as `X | None`, in quotes so that it never runs."""

    class Swap(ast.NodeTransformer):
        done = False

        def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
            if not self.done and isinstance(node.value, ast.Name) and node.value.id == "Optional":
                self.done = True
                return ast.Constant(f"{ast.unparse(node.slice)} | None")
            return self.generic_visit(node)

    swap = Swap()
    for f in rng.sample(fs := _functions(tree), len(fs)):
        f.args = swap.visit(f.args)
        if swap.done:
            return True
    return False


def default_to_constant(tree: ast.Module, rng: random.Random) -> bool:
    """A literal default of a module's function becomes a private constant."""
    found = [
        (f, i)
        for f in tree.body
        if isinstance(f, ast.FunctionDef)
        for i, d in enumerate(f.args.defaults)
        if isinstance(d, ast.Constant) and d.value is not None
    ]
    if not found:
        return False
    function, i = rng.choice(found)
    at = tree.body.index(function)
    tree.body.insert(at, ast.Assign([ast.Name("_A_DEFAULT", ast.Store())], function.args.defaults[i]))
    function.args.defaults[i] = ast.Name("_A_DEFAULT", ast.Load())
    return True


def edit_message(tree: ast.Module, rng: random.Random) -> bool:
    found = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call) and n.exc.args]
    if not found:
        return False
    rng.choice(found).args[0] = ast.Constant("another message")
    return True


def add_local_import(tree: ast.Module, rng: random.Random) -> bool:
    functions = [f for f in _functions(tree) if f.body]
    if not functions:
        return False
    f = rng.choice(functions)
    at = 1 if ast.get_docstring(f) else 0
    f.body.insert(at, ast.parse("import math").body[0])
    return True


def log_something(tree: ast.Module, rng: random.Random) -> bool:
    functions = [f for f in _functions(tree) if not isinstance(f.body[-1], ast.Raise)]
    if not functions:
        return False
    f = rng.choice(functions)
    at = 1 if ast.get_docstring(f) else 0
    f.body.insert(at, ast.parse("print('here')").body[0])
    return True


def rename_varargs(tree: ast.Module, rng: random.Random) -> bool:
    found = [
        f
        for f in _functions(tree)
        if f.args.kwarg and not any(isinstance(n, (ast.FunctionDef, ast.Lambda)) for s in f.body for n in ast.walk(s))
    ]
    if not found:
        return False
    f = rng.choice(found)
    assert f.args.kwarg is not None
    old, f.args.kwarg.arg = f.args.kwarg.arg, "all_other_options"
    for n in ast.walk(f):
        if isinstance(n, ast.Name) and n.id == old:
            n.id = "all_other_options"
    return True


REFACTORS: dict[str, Refactor] = {
    f.__name__: f
    for f in (
        edit_docstring,
        rename_local,
        swap_functions,
        add_private_helper,
        invert_if,
        name_the_result,
        respell_optional,
        default_to_constant,
        edit_message,
        add_local_import,
        log_something,
        rename_varargs,
    )
}
