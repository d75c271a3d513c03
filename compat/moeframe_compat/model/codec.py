"""Dataclasses to JSON-ready data and back, leaving out fields that hold their default.

Only what the model uses is supported: str, int, bool, None, Any, list, dict, and dataclasses; unions of dataclasses
carry the class name under `"is"`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

_UNION_TAG = "is"


def encode(value: Any) -> Any:
    """Plain data for a value of the model."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, dict):
        return {str(k): encode(v) for k, v in value.items()}
    out = {}
    kind: Any = type(value)
    tagged, fields = _plan(kind)
    if tagged:
        out[_UNION_TAG] = type(value).__name__
    for name, default, _ in fields:
        item = getattr(value, name)
        if default is dataclasses.MISSING or item != default:
            out[name] = encode(item)
    return out


def decode(kind: Any, data: Any) -> Any:
    """A value of type `kind` from plain data.

    Raises:
        KeyError, TypeError, ValueError: The data does not describe such a value.
    """
    return _decoder(kind)(data)


@functools.cache
def _plan(kind: Any) -> tuple[bool, list[tuple[str, Any, Any]]]:
    from moeframe_compat.model import objects

    hints = typing.get_type_hints(kind)
    fields = []
    for f in dataclasses.fields(kind):
        default = f.default
        if f.default_factory is not dataclasses.MISSING:
            default = f.default_factory()
        fields.append((f.name, default, hints[f.name]))
    return kind in typing.get_args(objects.Member), fields


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        item = _decoder(args[0])
        return lambda data: [item(d) for d in data]
    if origin is dict:
        item = _decoder(args[1])
        return lambda data: {k: item(v) for k, v in data.items()}
    if origin in (types.UnionType, typing.Union):
        members: dict[str, Any] = {a.__name__: a for a in args if isinstance(a, type) and dataclasses.is_dataclass(a)}
        if members:
            return lambda data: _decoder(members[data[_UNION_TAG]])(data)
        inner = next((_decoder(a) for a in args if a is not type(None)), _same)
        return lambda data: None if data is None else inner(data)
    if dataclasses.is_dataclass(kind):
        return _dataclass_decoder(kind)
    return _same


def _same(data: Any) -> Any:
    return data


def _dataclass_decoder(kind: Any) -> Callable[[Any], Any]:
    known = {name: hint for name, _, hint in _plan(kind)[1]}
    decoders: dict[str, Callable[[Any], Any]] = {}

    def build(data: dict[str, Any]) -> Any:
        values = {}
        for name, item in data.items():
            if name == _UNION_TAG and name not in known:
                continue
            if name not in decoders:
                decoders[name] = _decoder(known[name])
            values[name] = decoders[name](item)
        return kind(**values)

    return build
