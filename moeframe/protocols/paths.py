"""Fields that hold paths: in a recipe, relative ones are relative to the file that gives them. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["PathRule", "path_field", "path_rule"]

_KEY: Final = "moeframe.path"


@dataclass(frozen=True, kw_only=True)
class PathRule:
    """How core reads such a field."""

    words: tuple[str, ...] = ()
    """Values that are no paths."""
    patterns: bool = False
    """Values are glob patterns: what core puts before them is escaped."""


def path_field(default: Any, *, words: tuple[str, ...] = (), patterns: bool = False) -> Any:
    """Return a dataclass field whose text, or each text of its list, is a path.

    Core makes relative paths absolute before a backend sees them: relative to the recipe file that gives them, or to
    the working directory for an override and for a recipe made in Python. So the recipe that is saved with a run means
    the same wherever it lies.

    Args:
        default: the field's default; immutable, and never made absolute.
        words: values that are no paths, such as ``byte``.
        patterns: the values are glob patterns.
    """
    return field(default=default, metadata={_KEY: PathRule(words=words, patterns=patterns)})


def path_rule(metadata: Mapping[Any, Any]) -> PathRule | None:
    """Return the rule in a field's metadata, None for a field that holds no path."""
    rule = metadata.get(_KEY)
    return rule if isinstance(rule, PathRule) else None
