"""Relative paths of a recipe become absolute, so that the recipe saved with a run means the same wherever it lies."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from moeframe.config.provenance import Provenance
from moeframe.config.tree import join
from moeframe.config.typed import HOLE
from moeframe.protocols.paths import PathRule, path_rule

__all__ = ["real_path", "with_absolute_paths"]

SectionT = TypeVar("SectionT")


def with_absolute_paths(section: SectionT, path: str, provenance: Provenance) -> SectionT:
    """Return a copy of a dataclass in which every field declared by `path_field` is absolute.

    Args:
        section: the dataclass; unreadable values stay.
        path: its dotted key, such as ``data.options``.
        provenance: says which file gave a value, whose folder it is relative to; everything else is relative to the
            working directory.
    """
    changes = {}
    for spec in fields(section):  # type: ignore[arg-type]
        rule, value = path_rule(spec.metadata), getattr(section, spec.name)
        if rule is not None and value is not HOLE and value != spec.default:
            changes[spec.name] = _absolute(value, rule, join(path, spec.name), provenance)
    return replace(section, **changes) if changes else section  # type: ignore[type-var]


def real_path(path: Path) -> str:
    """Return a path without symbolic links; as it is where it cannot be a path, which reading it will tell."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return str(path)


def _absolute(value: Any, rule: PathRule, path: str, provenance: Provenance) -> Any:
    if isinstance(value, str):
        return value if value in rule.words else _joined(value, rule, _base(path, provenance))
    if isinstance(value, Sequence):
        return type(value)(  # type: ignore[call-arg]
            _absolute(entry, rule, join(path, index), provenance) for index, entry in enumerate(value)
        )
    return value


def _base(path: str, provenance: Provenance) -> Path:
    origin = provenance.get(path)
    if origin is not None and origin.kind == "file" and origin.where is not None:
        return Path(origin.where.file).parent.resolve()
    return Path.cwd()


def _joined(text: str, rule: PathRule, base: Path) -> str:
    if rule.patterns:
        return os.path.normpath(Path(glob.escape(str(base))) / text)
    return str((base / text).resolve())
