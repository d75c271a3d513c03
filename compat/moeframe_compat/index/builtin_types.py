"""What is known about types outside the package: the standard library's own, and torch's module methods."""

from __future__ import annotations

import functools
import importlib
import sys

_SAFE = frozenset(
    {
        "abc",
        "argparse",
        "ast",
        "asyncio",
        "builtins",
        "collections",
        "concurrent",
        "contextlib",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "io",
        "itertools",
        "json",
        "logging",
        "multiprocessing",
        "numbers",
        "os",
        "pathlib",
        "queue",
        "socket",
        "string",
        "subprocess",
        "threading",
        "types",
        "typing",
        "unittest",
        "uuid",
        "warnings",
        "weakref",
    }
)

TORCH_MODULE = frozenset(
    {
        "add_module",
        "apply",
        "bfloat16",
        "buffers",
        "children",
        "compile",
        "cpu",
        "cuda",
        "double",
        "eval",
        "extra_repr",
        "float",
        "get_buffer",
        "get_extra_state",
        "get_parameter",
        "get_submodule",
        "half",
        "load_state_dict",
        "modules",
        "named_buffers",
        "named_children",
        "named_modules",
        "named_parameters",
        "parameters",
        "register_buffer",
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_module",
        "register_parameter",
        "requires_grad_",
        "set_extra_state",
        "state_dict",
        "to",
        "to_empty",
        "train",
        "training",
        "type",
        "zero_grad",
        "__call__",
    }
)
"""Public names that every `torch.nn.Module` has: removing an override leaves the inherited one."""

OBJECT = frozenset(dir(object))


@functools.cache
def _real(path: str) -> type | None:
    """The class at a path of the standard library; None for anything else."""
    top = path.partition(".")[0]
    if top == "typing_extensions":
        path, top = f"typing.{path.partition('.')[2]}", "typing"
    if top not in _SAFE or top not in sys.stdlib_module_names:
        return None
    parts = path.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:n]))
        except ImportError:
            continue
        for name in parts[n:]:
            found = getattr(found, name, None)
        origin = getattr(found, "__origin__", None)  # typing.Dict stands for dict
        found = origin if not isinstance(found, type) and isinstance(origin, type) else found
        return found if isinstance(found, type) else None
    return None


@functools.cache
def ancestors(path: str) -> list[str]:
    """Full paths of a standard class and its ancestors, nearest first; empty when nothing is known about it."""
    name = path.rsplit(".", 1)[-1]
    if path in ("typing.Protocol", "typing_extensions.Protocol"):
        return ["typing.Protocol", "typing.Generic"]
    if path in ("typing.Generic", "typing_extensions.Generic"):
        return ["typing.Generic"]
    if name in ("NamedTuple", "TypedDict") and path.startswith("typing"):
        return [f"typing.{name}", "builtins.tuple" if name == "NamedTuple" else "builtins.dict"]
    real = _real(path)
    return [] if real is None else [f"{c.__module__}.{c.__qualname__}" for c in real.__mro__]


@functools.cache
def has_member(path: str, name: str) -> bool | None:
    """Does an outside class have this member? None if nobody can tell."""
    if path.startswith("torch.") and path.endswith(".Module"):
        return name in TORCH_MODULE or name in OBJECT
    real = _real(path)
    if real is not None:
        return hasattr(real, name)
    return False if path in ("typing.Protocol", "typing.Generic", "typing.NamedTuple", "typing.TypedDict") else None


def defines(path: str, name: str) -> bool:
    """Does an outside class, or an ancestor below `object`, define this itself?"""
    real = _real(path)
    return real is not None and any(name in vars(c) for c in real.__mro__ if c is not object)


def is_exception(path: str) -> bool:
    """Is it a known exception type?"""
    real = _real(path)
    return real is not None and issubclass(real, BaseException)


def is_subtype(path: str, other: str) -> bool | None:
    """Is one standard class a subclass of another? None if either is unknown."""
    a, b = _real(path), _real(other)
    return None if a is None or b is None else issubclass(a, b)
