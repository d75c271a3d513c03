"""What a plugin module offers, read from its source without running it.

Importing every installed plugin to learn what it offers would make each start as slow as the slowest plugin. So the
source is read with `ast`, and believed only where it can be read in one way:

- hooks are plain functions at the top level, decorated with `moeframe.hooks.hookimpl` and nothing else;
- an offer hook ends in its only `return`, of a list or tuple of offers (or of names that are bound once to such);
- each offer calls the offer class of its hook with a literal ``name=``;
- no name that matters is bound twice anywhere in the module, and the module's namespace is not written by other means.

Anything else is undecided, and the manager imports the module. After every import the manager compares what was
registered with what was read, so a wrong answer is an error and never a hidden plugin.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Final, NoReturn

from moeframe.hooks.entry_points import locate_module
from moeframe.hooks.kinds import KINDS

__all__ = ["Index", "Scan", "scan_module", "scan_source"]

_HOMES: Final = ("moeframe.hooks", "moeframe.hooks.offers")
_PREFIXES: Final = ("moeframe_offer_", "moeframe_check_", "moeframe_on_")
_WRITES_NAMESPACES: Final = frozenset(
    {"globals", "locals", "vars", "setattr", "delattr", "exec", "eval", "__import__", "__builtins__"},
)


@dataclass(frozen=True, kw_only=True)
class Index:
    """What a plugin registers: its offers as (kind, name), and its hooks."""

    offers: frozenset[tuple[str, str]]
    hooks: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The result of reading a module.

    `index` is None when it could not be decided, and `why` says what stood in the way. `mentions` are the literal
    names in calls of something called ``...Offer``: a hint on what a module that cannot be imported meant to offer.
    """

    index: Index | None = None
    why: str = ""
    mentions: frozenset[str] = field(default=frozenset())


class _UndecidedError(Exception):
    """The source can be read in more than one way."""


def scan_module(name: str, hooks: frozenset[str]) -> Scan:
    """Read the module of that dotted name. `hooks` are the names of all hooks. Raises nothing."""
    try:
        spec = locate_module(name)
    except Exception as error:  # noqa: BLE001  a finder of an installed package fails: importing will tell
        return Scan(why=f"looking for the module raised {type(error).__name__}: {error}")
    if spec is None:
        return Scan(why="the module was not found")
    if not isinstance(spec.loader, SourceFileLoader):
        return Scan(why="the module has no source file")
    try:
        source = Path(spec.loader.path).read_bytes()
    except OSError as error:
        return Scan(why=f"the source cannot be read: {error.strerror}")
    return scan_source(source, hooks)


def scan_source(source: bytes, hooks: frozenset[str]) -> Scan:
    """Read the source of a module. `hooks` are the names of all hooks. Raises nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Scan(why=f"the source cannot be parsed: {error}")
    mentions = frozenset(_mentioned_names(tree))
    try:
        return Scan(index=_Reader(tree, hooks).index(), mentions=mentions)
    except _UndecidedError as error:
        return Scan(why=str(error), mentions=mentions)


def _mentioned_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called.endswith("Offer"):
            for keyword in node.keywords:
                value = keyword.value
                if keyword.arg == "name" and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def _undecided(node: ast.AST, why: str) -> NoReturn:
    line = getattr(node, "lineno", None)
    raise _UndecidedError(f"line {line}: {why}" if line else why)


def _bound_names(node: ast.AST) -> list[str]:
    """Return the names that one node binds or deletes, in whatever scope."""
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return [name]
        case ast.alias(name=name, asname=asname):
            return [asname or name.partition(".")[0]]
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.MatchMapping(rest=str(name)):
            return [name]
        case _:
            return []


class _Reader:
    """Reads one module."""

    def __init__(self, tree: ast.Module, hooks: frozenset[str]) -> None:
        self._tree = tree
        self._hooks = hooks
        self._bound: Counter[str] = Counter()
        self._loaded: Counter[str] = Counter()
        for node in ast.walk(tree):
            self._count(node)
        self._imports = self._read_imports()

    def index(self) -> Index:
        """Return the index, or raise `_UndecidedError`."""
        functions = [node for node in self._tree.body if isinstance(node, ast.FunctionDef) and self._is_hook(node)]
        names = [function.name for function in functions]
        for node in functions:
            if node.name not in self._hooks:
                _undecided(node, f"{node.name} is not a hook of this version")
        for name in self._bound:
            looks_like_hook = name in self._hooks or name.startswith(_PREFIXES)
            if looks_like_hook and (self._bound[name] > 1 or name not in names):
                raise _UndecidedError(f"{name} is not one plain top-level function under @hookimpl")
        uses = sum(self._dotted(node) == "moeframe.hooks.hookimpl" for node in ast.walk(self._tree))
        if uses != len(functions):
            raise _UndecidedError("hookimpl is used other than as the decorator of a top-level function")
        if not functions:
            raise _UndecidedError("no hook was found")
        kinds = {kind.hook: kind.name for kind in KINDS.values()}
        offers = [
            (kinds[function.name], name)
            for function in functions
            if function.name in kinds
            for name in self._offered_names(function)
        ]
        if len(set(offers)) != len(offers):
            raise _UndecidedError("one name is offered twice")
        return Index(offers=frozenset(offers), hooks=frozenset(names))

    def _count(self, node: ast.AST) -> None:
        """Count what a node binds and loads; names of all scopes count together, which errs towards undecided."""
        self._bound.update(_bound_names(node))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            self._loaded[node.id] += 1
            if node.id in _WRITES_NAMESPACES:
                _undecided(node, f"{node.id} may write the module's namespace")
        elif isinstance(node, ast.Attribute) and node.attr in ("modules", "__dict__", "__setattr__"):
            _undecided(node, f"{ast.unparse(node)} may write the module's namespace")
        elif (
            isinstance(node, ast.ImportFrom) and node.module == "sys" and "modules" in {one.name for one in node.names}
        ):
            _undecided(node, "what is imported as modules may write the module's namespace")
        elif isinstance(node, ast.alias) and node.name == "*":
            _undecided(node, "import * binds names that cannot be read here")

    def _read_imports(self) -> dict[str, str]:
        """Return the full names behind the names that the top level imports, for names bound once."""
        found: dict[str, str] = {}
        for node in self._tree.body:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                for alias in node.names:
                    home = "moeframe.hooks" if node.module in _HOMES else node.module
                    found[alias.asname or alias.name] = f"{home}.{alias.name}"
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    found[name] = alias.name if alias.asname else name
        return {name: full for name, full in found.items() if self._bound[name] == 1}

    def _dotted(self, node: ast.AST) -> str | None:
        """Return the full name of an imported thing, such as ``moeframe.hooks.DispatcherOffer``."""
        if isinstance(node, ast.Name):
            return self._imports.get(node.id) if isinstance(node.ctx, ast.Load) else None
        if isinstance(node, ast.Attribute):
            owner = self._dotted(node.value)
            if owner is None:
                return None
            return f"{'moeframe.hooks' if owner in _HOMES else owner}.{node.attr}"
        return None

    def _is_hook(self, function: ast.FunctionDef) -> bool:
        """Whether the function is decorated with exactly ``@hookimpl`` or ``@hookimpl()``."""
        if len(function.decorator_list) != 1:
            return False
        decorator = function.decorator_list[0]
        if isinstance(decorator, ast.Call) and not decorator.args and not decorator.keywords:
            decorator = decorator.func
        return self._dotted(decorator) == "moeframe.hooks.hookimpl"

    def _offered_names(self, function: ast.FunctionDef) -> Iterator[str]:
        """Yield the names that an offer hook returns."""
        last = function.body[-1]
        ends = [node for node in ast.walk(function) if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom)]
        if not isinstance(last, ast.Return) or ends != [last]:
            _undecided(function, f"{function.name} does not end in its only return")
        values = self._assigned([*self._tree.body, *function.body])
        result = last.value
        if isinstance(result, ast.Name):
            once = self._loaded[result.id] == 1
            result = values.get(result.id)
            if isinstance(result, ast.List) and not once:
                _undecided(last, "a named list that is used twice may change")
        if not isinstance(result, ast.List | ast.Tuple):
            _undecided(last, f"{function.name} does not return a list or tuple that can be read")
        offer_class = next(kind.offer_class for kind in KINDS.values() if kind.hook == function.name)
        for element in result.elts:
            offer = values.get(element.id) if isinstance(element, ast.Name) else element
            if not isinstance(offer, ast.Call) or self._dotted(offer.func) != f"moeframe.hooks.{offer_class.__name__}":
                _undecided(element, f"not a plain call of {offer_class.__name__}")
            yield self._name_of(offer, values)

    def _name_of(self, offer: ast.Call, values: dict[str, ast.expr]) -> str:
        """Return the literal ``name=`` of the call of an offer class."""
        given = {keyword.arg: keyword.value for keyword in offer.keywords}
        if offer.args or None in given or "name" not in given:
            _undecided(offer, "the offer's arguments are not all given by keyword")
        name: ast.expr | None = given["name"]
        if isinstance(name, ast.Name):
            name = values.get(name.id)
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            _undecided(offer, "the offer's name is not a literal")
        return name.value

    def _assigned(self, statements: list[ast.stmt]) -> dict[str, ast.expr]:
        """Return the values of the names that these statements bind and that nothing else in the module binds."""
        found: dict[str, ast.expr] = {}
        for statement in statements:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, value = statement.targets[0], statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                target, value = statement.target, statement.value
            else:
                continue
            if isinstance(target, ast.Name) and self._bound[target.id] == 1:
                found[target.id] = value
        return found
