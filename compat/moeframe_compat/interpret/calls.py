"""What names mean and what calls do in the interpreter."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moeframe_compat.extract.statements import scoped_statements
from moeframe_compat.index.classes import fields, is_dataclass
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.interpret.natives import BUILTINS, NativeMixin
from moeframe_compat.interpret.values import (
    ClassValue,
    External,
    FunctionValue,
    Instance,
    ModuleValue,
    Opaque,
    RaisedError,
    ReturnedError,
    Scope,
    Structured,
    SuperValue,
    Trace,
    UndecidedError,
    key,
)
from moeframe_compat.model.objects import Alias, Class, Function, Module

if TYPE_CHECKING:
    from moeframe_compat.model.snapshot import Sources

_DEPTH = 12


class Calls(NativeMixin):
    """Names, attributes and calls. One machine runs one trial; `trees` is shared between trials."""

    def __init__(self, index: Index, sources: Sources, trees: dict[str, ast.Module]) -> None:
        self.index = index
        self.sources = sources
        self.trees = trees
        self.trace = Trace()
        self.globals: dict[str, dict[str, Any]] = {}
        self.depth = 0
        self.stopped: list[dict[str, Any]] = []
        self.opaque_super = False

    def run(self, body: list[ast.stmt], scope: Scope) -> None:
        """Run statements; the machine does."""
        raise NotImplementedError

    def value(self, node: ast.expr, scope: Scope) -> Any:
        """Evaluate; the machine does."""
        raise NotImplementedError

    def tree(self, module: str) -> ast.Module | None:
        """Syntax tree of a module of the new release."""
        if module not in self.trees:
            known = self.index.modules.get(module)
            text = self.sources.text(known.file) if known is not None else None
            if text is None:
                return None
            self.trees[module] = ast.parse(text)
        return self.trees[module]

    def lookup(self, name: str, scope: Scope) -> Any:
        """The value of a name."""
        at: Scope | None = scope
        while at is not None:
            if name in at.names:
                return at.names[name]
            if at.outer is None:
                return self.global_value(at.module, name)
            at = at.outer
        return Opaque(name)

    def global_value(self, module: str, name: str) -> Any:
        """The value of a module's name, worked out when first asked for."""
        known = self.globals.setdefault(module, {})
        if name not in known:
            known[name] = Opaque(f"{module}.{name}")  # ends recursion
            known[name] = self._global(module, name)
        return known[name]

    def _global(self, module: str, name: str) -> Any:
        tree = self.tree(module)
        made: ast.stmt | None = None
        for scoped in scoped_statements(tree.body) if tree is not None else ():
            if not scoped.type_checking and name in _binds(scoped.node):
                made = scoped.node
        scope = Scope({}, None, module)
        if isinstance(made, (ast.FunctionDef, ast.AsyncFunctionDef)):
            value: Any = FunctionValue(made, scope)
            for d in reversed(made.decorator_list):
                value = self.call(self.value(d, scope), [value], {})
            return value
        if isinstance(made, ast.ClassDef):
            return ClassValue(f"{module}.{name}")
        if isinstance(made, (ast.Assign, ast.AnnAssign)) and made.value is not None:
            return self.value(made.value, scope)
        known = self.index.modules.get(module)
        alias = known.members.get(name) if known is not None else None
        if isinstance(alias, Alias):
            return self.path_value(alias.target)
        if name in BUILTINS:
            return External(f"builtins.{name}")
        return External(f"builtins.{name}") if name[:1].isupper() else Opaque(name)

    def path_value(self, path: str) -> Any:
        """The value at a dotted path."""
        found = self.index.find(path)
        if found is None:
            return Opaque(path)
        if found.external:
            return External(found.path)
        return self.found_value(found)

    def found_value(self, found: Found) -> Any:
        """The value of an object of the package."""
        if isinstance(found.obj, Module):
            return ModuleValue(found.path)
        if isinstance(found.obj, Class):
            return ClassValue(found.path)
        return self.global_value(found.module, found.path.rpartition(".")[2])

    def module_value(self, path: str) -> Any:
        """A module, inside or outside the package."""
        return ModuleValue(path) if path in self.index.modules else External(path)

    def attribute(self, owner: Any, name: str) -> Any:  # noqa: PLR0911 - one line per kind of owner
        """`owner.name`."""
        if isinstance(owner, Instance):
            if name in owner.attributes:
                return owner.attributes[name]
            return self._class_attribute(owner.cls, name, owner)
        if isinstance(owner, SuperValue):
            return self._inherited(owner, name)
        if isinstance(owner, ClassValue):
            return self._class_attribute(owner.path, name, None)
        if isinstance(owner, ModuleValue):
            return self.path_value(f"{owner.path}.{name}")
        if isinstance(owner, External):
            return External(f"{owner.path}.{name}")
        if isinstance(owner, (dict, list, str, set, tuple)):
            if isinstance(owner, dict) and isinstance(owner, Structured) and name in owner:
                return owner[name]
            return self.method(owner, name)
        return Opaque(f"{key(owner)}.{name}")

    def _class_attribute(self, path: str, name: str, instance: Instance | None) -> Any:
        found = self.index.find(path)
        member = self.index.member(found, name) if found is not None else None
        if member is None:
            return Opaque(f"{path}.{name}") if instance is None else Opaque(f"{path}().{name}")
        if isinstance(member.obj, Function):
            made = self._method_value(member, instance, path)
            return self.call(made, [], {}) if member.obj.role == "property" and instance is not None else made
        return Opaque(member.path)

    def _method_value(self, member: Found, instance: Any, cls: str) -> Any:
        assert isinstance(member.obj, Function)
        owner, name = member.path.rpartition(".")[0], member.obj.name
        tree = self.tree(member.module)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.ClassDef) and node.name == owner.rpartition(".")[2]:
                for s in scoped_statements(node.body):
                    if isinstance(s.node, ast.FunctionDef) and s.node.name == name and s.node.lineno == member.obj.line:
                        scope = Scope({}, None, member.module, owner)
                        value: Any = FunctionValue(s.node, scope, owner)
                        for d in reversed(s.node.decorator_list):
                            made = self.value(d, scope)
                            plain = isinstance(made, External) and made.path.rpartition(".")[2] in (
                                "staticmethod",
                                "classmethod",
                                "property",
                                "abstractmethod",
                                "override",
                                "cached_property",
                            )
                            value = value if plain else self.call(made, [value], {})
                        if isinstance(value, FunctionValue):
                            bound = ClassValue(cls) if member.obj.binding == "class" else instance
                            value.bound = None if member.obj.binding == "static" else bound
                        return value
        return Opaque(member.path)

    def _inherited(self, owner: SuperValue, name: str) -> Any:
        if self.opaque_super:
            return Opaque(f"super().{name}")
        found = self.index.find(owner.owner)
        for c in self.index.mro(found)[1:] if found is not None else ():
            if isinstance(c.obj, Class) and isinstance(c.obj.members.get(name), Function):
                return self._method_value(
                    Found(f"{c.path}.{name}", c.module, c.obj.members[name]), owner.instance, c.path
                )
        return Opaque(f"super().{name}")

    def super_value(self, scope: Scope) -> Any:
        """`super()` in the method that is running."""
        at: Scope | None = scope
        while at is not None and not at.owner:
            at = at.outer
        first = next(iter(scope.names.values()), None)
        return SuperValue(at.owner, first) if at is not None and at.owner else Opaque("super()")

    def call(self, function: Any, args: list[Any], named: dict[str, Any]) -> Any:
        """Call a value."""
        if isinstance(function, FunctionValue):
            return self._call_function(function, args, named)
        if isinstance(function, ClassValue):
            return self.construct(function.path, args, named)
        if isinstance(function, Instance):
            return self.call(self.attribute(function, "__call__"), args, named)
        if isinstance(function, External):
            return self.call_external(function.path, args, named)
        if callable(function):
            if (
                args
                and isinstance(args[0], Opaque)
                and getattr(function, "__name__", "") not in ("append", "add", "insert")
            ):
                raise UndecidedError
            return self.native(lambda: function(*args, **named))
        self.unknown(key(function), args, named)
        return Opaque(f"{key(function)}({', '.join(map(key, args))})")

    def unknown(self, what: str, args: list[Any], named: dict[str, Any]) -> None:
        """Note a call whose effect nobody knows."""
        shown = [*map(key, args), *(f"{k}={key(v)}" for k, v in sorted(named.items()))]
        self.trace.effects.append(f"{what}({', '.join(shown)})")

    def _call_function(self, function: FunctionValue, args: list[Any], named: dict[str, Any]) -> Any:
        if self.depth >= _DEPTH:
            raise UndecidedError
        if function.bound is not None:
            args = [function.bound, *args]
        scope = Scope(self.bind(function, args, named), function.scope, function.scope.module, function.owner)
        if isinstance(function.node, ast.Lambda):
            return self.value(function.node.body, scope)
        if _yields(function.node):
            raise UndecidedError
        self.depth += 1
        try:
            self.run(function.node.body, scope)
        except ReturnedError as e:
            return e.value
        except UndecidedError:
            self.stopped.append(dict(scope.names))
            raise
        finally:
            self.depth -= 1
        return None

    def bind(  # noqa: C901 - the rules of the language
        self, function: FunctionValue, args: list[Any], named: dict[str, Any]
    ) -> dict[str, Any]:
        """Arguments to names, as Python does it.

        Raises:
            RaisedError: TypeError, if they do not fit.
        """
        a = function.node.args
        named = dict(named)
        positional = [*a.posonlyargs, *a.args]
        out: dict[str, Any] = {p.arg: v for p, v in zip(positional, args, strict=False)}
        if len(args) > len(positional):
            if a.vararg is None:
                raise RaisedError("TypeError")
            out[a.vararg.arg] = tuple(args[len(positional) :])
        elif a.vararg is not None:
            out[a.vararg.arg] = ()
        for p in (*a.args, *a.kwonlyargs):
            if p.arg in named:
                if p.arg in out:
                    raise RaisedError("TypeError")
                out[p.arg] = named.pop(p.arg)
        if a.kwarg is not None:
            out[a.kwarg.arg] = named
        elif named:
            raise RaisedError("TypeError")
        offset = len(positional) - len(a.defaults)
        defaults = {p.arg: d for p, d in zip(positional[offset:], a.defaults, strict=True)}
        defaults |= {p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None}
        for p in (*positional, *a.kwonlyargs):
            if p.arg not in out:
                if p.arg not in defaults:
                    raise RaisedError("TypeError")
                out[p.arg] = self.value(defaults[p.arg], function.scope)
        order = [p.arg for p in positional]
        return {n: out[n] for n in [*order, *(n for n in out if n not in order)]}

    def construct(self, path: str, args: list[Any], named: dict[str, Any]) -> Any:
        """Make an instance of a class of the package."""
        found = self.index.find(path)
        if found is None or not isinstance(found.obj, Class):
            return Opaque(f"{path}()")
        made = Instance(path)
        init = self.index.member(found, "__init__")
        if init is not None and isinstance(init.obj, Function):
            self.call(self._method_value(init, made, path), args, named)
        elif any(is_dataclass(self.index, c) for c in self.index.mro(found) if isinstance(c.obj, Class)):
            self._fill_fields(made, found, args, named)
        elif (args or named) and not self.index.open_bases(found):
            raise RaisedError("TypeError")
        else:
            made.attributes |= {f"arg{i}": v for i, v in enumerate(args)} | named
        return made

    def _fill_fields(self, made: Instance, cls: Found, args: list[Any], named: dict[str, Any]) -> None:
        known = [f for f in fields(self.index, cls) if f.init]
        given = dict(zip([f.name for f in known if not f.kw_only], args, strict=False)) | named
        if len(args) > len(known) or set(given) - {f.name for f in known}:
            raise RaisedError("TypeError")
        for f in known:
            if f.name not in given and f.default is None:
                raise RaisedError("TypeError")
            made.attributes[f.name] = (
                given[f.name] if f.name in given else self.default_of(f.default or "None", f.module)
            )
        hook = self.index.member(cls, "__post_init__")
        if hook is not None and isinstance(hook.obj, Function):
            self.call(self._method_value(hook, made, cls.path), [], {})

    def default_of(self, text: str, module: str) -> Any:
        """A field's default, `field(...)` included."""
        node = ast.parse(text, mode="eval").body
        scope = Scope({}, None, module)
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "field":
            given = {k.arg: k.value for k in node.keywords}
            if "default" in given:
                return self.value(given["default"], scope)
            if "default_factory" in given:
                return self.call(self.value(given["default_factory"], scope), [], {})
        return self.value(node, scope)

    @staticmethod
    def copied(value: Any) -> Any:
        """A deep copy of plain data."""
        return copy.deepcopy(value) if isinstance(value, (dict, list)) else value

    @staticmethod
    def native(action: Callable[[], Any]) -> Any:
        """Run a plain operation; its exception becomes the program's."""
        try:
            return action()
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, ZeroDivisionError) as e:
            raise RaisedError(type(e).__name__) from None


def _binds(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {t.id for t in node.targets if isinstance(t, ast.Name)}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()


def _yields(node: ast.AST) -> bool:
    return any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(node))
