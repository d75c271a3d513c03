"""Problems get their places, and an order."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from moeframe.config.provenance import Provenance
from moeframe.errors import Location, Problem

__all__ = ["in_order", "located"]


def located(problems: Iterable[Problem], provenance: Provenance) -> list[Problem]:
    """Return the problems, each without a place given that of its key."""
    return [
        problem if problem.where is not None else replace(problem, where=provenance.where(problem.path))
        for problem in problems
    ]


def in_order(problems: Iterable[Problem], *, first: Collection[str] = ()) -> tuple[Problem, ...]:
    """Return each problem once, by file and line, overrides last; those of the keys in `first` before all others.

    The problem of a YAML anchor comes up wherever the anchor is used; it counts once.
    """
    found: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        found.setdefault((str(problem.where), problem.message, problem.path.rpartition(".")[2]), problem)
    return tuple(sorted(found.values(), key=lambda problem: (problem.path not in first, _position(problem))))


def _position(problem: Problem) -> tuple[bool, str, int, int]:
    where = problem.where or Location(file="")
    is_override = where.line is None and "=" in where.file
    return is_override, "" if is_override else where.file, where.line or 0, where.column or 0
