"""Which case of a `match` a value takes, where it is plainly known."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from moeframe_compat.interpret.values import UndecidedError

_PLAIN = (bool, int, float, str, bytes, type(None))


def matches(pattern: ast.pattern, value: Any, known: Callable[[ast.expr], Any], found: dict[str, Any]) -> bool:
    """Does a value fit a pattern? `known` gives the value of an expression; captured names go into `found`.

    Raises:
        UndecidedError: Nobody can tell.
    """
    if isinstance(pattern, ast.MatchAs):
        fits = pattern.pattern is None or matches(pattern.pattern, value, known, found)
        if fits and pattern.name:
            found[pattern.name] = value
        return fits
    if isinstance(pattern, ast.MatchOr):
        return any(matches(p, value, known, found) for p in pattern.patterns)
    if isinstance(pattern, ast.MatchSingleton) and isinstance(value, (*_PLAIN, dict, list, tuple)):
        return value is pattern.value
    if isinstance(pattern, ast.MatchValue) and isinstance(value, (*_PLAIN, dict, list, tuple)):
        wanted = known(pattern.value)
        if isinstance(wanted, _PLAIN):
            return bool(value == wanted)
    if isinstance(pattern, ast.MatchMapping) and isinstance(value, (*_PLAIN, dict, list, tuple)):
        return isinstance(value, dict) and _mapping(pattern, value, known, found)
    raise UndecidedError


def _mapping(
    pattern: ast.MatchMapping, value: dict[Any, Any], known: Callable[[ast.expr], Any], found: dict[str, Any]
) -> bool:
    keys = [known(k) for k in pattern.keys]
    if not all(isinstance(k, _PLAIN) for k in keys):
        raise UndecidedError
    if not all(k in value and matches(p, value[k], known, found) for k, p in zip(keys, pattern.patterns, strict=True)):
        return False
    if pattern.rest:
        found[pattern.rest] = {k: v for k, v in value.items() if k not in keys}
    return True
