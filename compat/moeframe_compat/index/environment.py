"""Which environment variables a release reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.index.public import is_test
from moeframe_compat.index.values import evaluate
from moeframe_compat.model.objects import Attribute, Class

Place = tuple[str, int]


@dataclass(slots=True)
class Environment:
    """Names that are read, and where first; patterns of names that are put together.

    `unknown`: how many reads there are of which nobody can tell the name.
    """

    names: dict[str, Place] = field(default_factory=dict)
    patterns: set[str] = field(default_factory=set)
    unknown: int = 0

    def may_read(self, name: str) -> bool:
        """Is the name read, or can what is read by a computed name be it?"""
        return name in self.names or any(re.fullmatch(pattern, name) for pattern in self.patterns)


def environment(index: Index) -> Environment:
    """What a release reads, its tests left out."""
    out = Environment()
    modules = {m.file: path for path, m in index.modules.items()}
    for v in index.snapshot.surfaces.variables:
        scope = modules.get(v.file, index.package)
        if is_test(scope):
            continue
        node = parse(v.name) if v.computed else ast.Constant(v.name)
        pattern = _pattern(index, scope, node) if node is not None else _ANY
        if pattern == _ANY:
            out.unknown += 1
        elif _ANY in pattern:
            out.patterns.add(pattern)
        else:
            out.names.setdefault(re.sub(r"\\(.)", r"\1", pattern), (v.file, v.line))
    out.patterns |= set(_settings(index))
    return out


def _settings(index: Index) -> Iterator[str]:
    """Patterns for the fields of pydantic's settings, which are read by their names in either case."""
    for path, module in index.modules.items():
        for cls in module.members.values():
            if isinstance(cls, Class) and index.inherits(Found(f"{path}.{cls.name}", path, cls), "BaseSettings"):
                yield from (f"(?i:.*{m.name})" for m in cls.members.values() if isinstance(m, Attribute))


_ANY = ".*"


def _pattern(index: Index, scope: str, node: ast.expr) -> str:
    """A regular expression for what an expression may give: texts as they are, anything for what nobody can tell."""
    if isinstance(node, ast.JoinedStr):
        return _joined([_pattern(index, scope, part) for part in node.values])
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _joined([_pattern(index, scope, node.left), _pattern(index, scope, node.right)])
    if isinstance(node, ast.FormattedValue):
        return _pattern(index, scope, node.value) if node.format_spec is None else _ANY
    value = evaluate(index, scope, ast.unparse(node))
    return re.escape(value) if isinstance(value, str) else _ANY


def _joined(parts: list[str]) -> str:
    return re.sub(r"(\.\*)+", _ANY, "".join(parts))
