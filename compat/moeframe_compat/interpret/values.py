"""Values of the interpreter that are not plain Python values, and the ways an interpretation ends."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class UndecidedError(Exception):
    """The next step depends on something unknown, or is not supported."""


class RaisedError(Exception):
    """The interpreted program raised: `name` is the exception's last name."""

    def __init__(self, name: str, value: Any = None) -> None:
        super().__init__(name)
        self.name = name
        self.value = value


class ReturnedError(Exception):
    """A `return` statement; control flow of the interpreter."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class BreakError(Exception):
    """A `break`; control flow of the interpreter."""


class ContinueError(Exception):
    """A `continue`; control flow of the interpreter."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something unknown, told from other unknowns by how it came about."""

    text: str


@dataclass(frozen=True, slots=True)
class ModuleValue:
    """A module: inside the package, or outside."""

    path: str


@dataclass(slots=True, eq=False)
class FunctionValue:
    """A function with its closure."""

    node: FunctionNode
    scope: Scope
    owner: str = ""
    bound: Any = None
    binding: str = "function"


@dataclass(frozen=True, slots=True)
class ClassValue:
    """A class of the package, by path."""

    path: str


@dataclass(frozen=True, slots=True)
class External:
    """Something outside the package, by path."""

    path: str


@dataclass(slots=True, eq=False)
class Instance:
    """An object of the package's classes, or a sentinel (`cls` is object)."""

    cls: str
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuperValue:
    """`super()` inside a method of `owner`."""

    owner: str
    instance: Any


class Structured(dict[str, Any]):
    """A config with a fixed set of keys."""


@dataclass(slots=True)
class Scope:
    """Names of a function call, and the scope around it; the outermost is a module."""

    names: dict[str, Any]
    outer: Scope | None
    module: str
    owner: str = ""


@dataclass(slots=True)
class Trace:
    """What an interpretation did to the world: calls of unknown things, warnings."""

    effects: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    steps: int = 0


def key(value: Any, depth: int = 0) -> str:  # noqa: PLR0911 - one line per kind of value
    """A text that is equal for equal values."""
    if depth > 6:
        return "..."
    if isinstance(value, Opaque):
        return f"<{value.text}>"
    if isinstance(value, (ModuleValue, ClassValue, External)):
        return f"<{value.path}>"
    if isinstance(value, FunctionValue):
        return f"<function {getattr(value.node, 'name', 'lambda')}>"
    if isinstance(value, SuperValue):
        return "<super>"
    if isinstance(value, Instance):
        inner = ", ".join(f"{k}={key(v, depth + 1)}" for k, v in sorted(value.attributes.items()))
        return f"{value.cls}({inner})"
    if isinstance(value, dict):
        return "{" + ", ".join(sorted(f"{key(k, depth + 1)}: {key(v, depth + 1)}" for k, v in value.items())) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        texts = [key(v, depth + 1) for v in value]
        return f"{type(value).__name__}({', '.join(sorted(texts) if isinstance(value, (set, frozenset)) else texts)})"
    return f"{type(value).__name__}:{value!r}"
