"""Builtins and the few outside functions that shims use: warnings, functools, copy, OmegaConf."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moeframe_compat.interpret.values import (
    ClassValue,
    External,
    FunctionValue,
    Instance,
    ModuleValue,
    Opaque,
    RaisedError,
    Structured,
    Trace,
    UndecidedError,
    key,
)

_PLAIN: dict[str, Callable[..., Any]] = {
    "len": len,
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "sorted": sorted,
    "any": any,
    "all": all,
    "zip": lambda *a: list(zip(*a, strict=False)),
    "enumerate": lambda *a: list(enumerate(*a)),
    "range": lambda *a: list(range(*a)),
    "min": min,
    "max": max,
    "sum": sum,
    "abs": abs,
    "repr": repr,
    "reversed": lambda x: list(reversed(x)),
    "round": round,
}
_SPECIAL = (
    "isinstance",
    "getattr",
    "hasattr",
    "setattr",
    "object",
    "print",
    "type",
    "callable",
    "issubclass",
    "vars",
    "id",
    "super",
)
BUILTINS = frozenset(_PLAIN) | frozenset(_SPECIAL)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "list": list,
    "dict": dict,
    "tuple": tuple,
    "set": set,
    "Mapping": dict,
    "MutableMapping": dict,
    "Sequence": (list, tuple, str),
    "DictConfig": dict,
    "ListConfig": list,
}
_METHODS = {
    dict: ("get", "pop", "items", "keys", "values", "setdefault", "update", "copy", "clear"),
    list: ("append", "extend", "pop", "index", "count", "copy", "remove", "insert"),
    str: (
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "split",
        "replace",
        "format",
        "join",
        "removeprefix",
        "removesuffix",
        "rpartition",
        "partition",
        "lstrip",
        "rstrip",
        "isdigit",
    ),
    set: ("add", "discard", "union", "difference", "intersection", "issubset", "copy", "update"),
    tuple: ("index", "count"),
}
_QUIET = (
    "debug",
    "info",
    "warning",
    "warning_once",
    "error",
    "exception",
    "log",
    "warn_once",
    "warn_rank_0",
    "log_single_rank",
)


class NativeMixin:
    """Calls of things that are not written in the package."""

    trace: Trace
    globals: dict[str, dict[str, Any]]

    def truth(self, value: Any) -> bool:
        """Is a value true?

        Raises:
            UndecidedError: Nobody can tell.
        """
        if isinstance(value, Opaque):
            raise UndecidedError
        if isinstance(value, (Instance, FunctionValue, ModuleValue, ClassValue, External)):
            return True
        return bool(value)

    def iterate(self, value: Any) -> list[Any]:
        """The items of a container.

        Raises:
            UndecidedError: It is unknown.
        """
        if isinstance(value, (list, tuple, set, frozenset, dict, str)) or type(value).__name__ in (
            "dict_items",
            "dict_keys",
            "dict_values",
        ):
            return list(value)
        raise UndecidedError

    def method(self, owner: Any, name: str) -> Any:
        """A method of a plain value."""
        for kind, names in _METHODS.items():
            if isinstance(owner, kind) and name in names:
                return getattr(owner, name)
        return Opaque(f"{key(owner)}.{name}")

    def call_external(self, path: str, args: list[Any], named: dict[str, Any]) -> Any:  # noqa: C901, PLR0911
        """Call something outside the package."""
        last = path.rpartition(".")[2]
        if path.startswith("builtins."):
            return self._builtin(last, args, named)
        if last == "warn" or path.startswith("warnings."):
            self.trace.warnings.append(key(args[0]) if args else "")
            return None
        if last in _QUIET:
            return None
        if last == "wraps" or last in (
            "lru_cache",
            "cache",
            "deprecated",
            "overload",
            "staticmethod",
            "classmethod",
            "final",
            "override",
        ):
            return (
                (lambda function: function)
                if not (args and isinstance(args[0], FunctionValue)) or last == "wraps"
                else args[0]
            )
        if last in ("copy", "deepcopy") and args:
            return self.copied(args[0])  # type: ignore[attr-defined]
        if last == "cast" and len(args) == 2:
            return args[1]
        if path == "importlib.import_module" and args and isinstance(args[0], str):
            return self.module_value(args[0])  # type: ignore[attr-defined]
        if path == "dataclasses.asdict" and args and isinstance(args[0], Instance):
            return dict(args[0].attributes)
        if path == "dataclasses.replace" and args and isinstance(args[0], Instance):
            return self.call(ClassValue(args[0].cls), [], args[0].attributes | named)  # type: ignore[attr-defined]
        if "OmegaConf" in path or path.startswith("omegaconf."):
            return self._omegaconf(last, args)
        if last in ("safe_load", "load", "loads", "full_load") and args and isinstance(args[0], dict):
            return args[0]
        if last in ("Path", "open", "read_text", "fspath") and args and isinstance(args[0], dict):
            return args[0]
        self.unknown(path, args, named)  # type: ignore[attr-defined]
        return Opaque(f"{path}({', '.join(map(key, args))})")

    def _builtin(self, name: str, args: list[Any], named: dict[str, Any]) -> Any:  # noqa: C901, PLR0911
        if name in _PLAIN:
            if any(isinstance(a, Opaque) for a in args):
                return Opaque(f"{name}({', '.join(map(key, args))})")
            return self.native(lambda: _PLAIN[name](*args, **named))  # type: ignore[attr-defined]
        if name == "object":
            return Instance("object")
        if name == "print":
            return None
        if name == "isinstance":
            return self._isinstance(args[0], args[1])
        if name == "getattr":
            return self._getattr(args)
        if name == "hasattr" and isinstance(args[0], Instance):
            return args[1] in args[0].attributes
        if name == "setattr" and isinstance(args[0], Instance):
            args[0].attributes[args[1]] = args[2]
            return None
        if name == "callable":
            return isinstance(args[0], (FunctionValue, ClassValue))
        if name == "type" and isinstance(args[0], Instance):
            return ClassValue(args[0].cls)
        if name == "vars" and isinstance(args[0], Instance):
            return args[0].attributes
        return Opaque(f"{name}({', '.join(map(key, args))})")

    def _getattr(self, args: list[Any]) -> Any:
        if not isinstance(args[1], str):
            return Opaque(f"getattr({key(args[0])}, {key(args[1])})")
        found = self.attribute(args[0], args[1])  # type: ignore[attr-defined]
        if isinstance(args[0], Instance) and isinstance(found, Opaque) and len(args) > 2:
            return args[2]
        return found

    def _isinstance(self, value: Any, kinds: Any) -> bool:
        if isinstance(value, Opaque):
            raise UndecidedError
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if isinstance(kind, External):
                real = _TYPES.get(kind.path.rpartition(".")[2])
                if real is None:
                    raise UndecidedError
                if isinstance(value, real):
                    return True
            elif isinstance(kind, ClassValue):
                if isinstance(value, Instance) and value.cls == kind.path:
                    return True
            else:
                raise UndecidedError
        return False

    def _omegaconf(self, name: str, args: list[Any]) -> Any:
        if name in ("create", "load", "to_container", "to_object") and args:
            return self.copied(args[0])  # type: ignore[attr-defined]
        if name == "structured" and args:
            made = self.call(args[0], [], {}) if isinstance(args[0], ClassValue) else args[0]  # type: ignore[attr-defined]
            return _structured(made)
        if name in ("merge", "unsafe_merge"):
            out = self.copied(args[0])  # type: ignore[attr-defined]
            for other in args[1:]:
                out = _merge(out, other)
            return out
        return Opaque(f"OmegaConf.{name}")


def _structured(value: Any) -> Any:
    if isinstance(value, Instance):
        return Structured({k: _structured(v) for k, v in value.attributes.items()})
    return value


def _merge(base: Any, other: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(other, dict):
        raise UndecidedError
    for k, v in other.items():
        if isinstance(base, Structured) and k not in base:
            raise RaisedError("ConfigKeyError")
        inner = base.get(k)
        if isinstance(inner, dict) and isinstance(v, dict):
            base[k] = _merge(inner, v)
        elif isinstance(inner, dict):
            raise RaisedError("ValidationError")
        else:
            base[k] = v
    return base
