"""Whole tensors that are off by one factor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from moeframe.verify.causes import FACTOR_CAUSES, FactorCause, factor_value
from moeframe.verify.compare import Group, groups_of
from moeframe.verify.findings import Case, Finding, names_of
from moeframe.verify.records import RankNumbers

__all__ = ["find_factors"]

_NEAR: Final = 1e-5
_CONSEQUENCE_OF: Final[Mapping[str, tuple[str, ...]]] = {"clipped": ("gradients", "norm")}
"""Where one of these differs, the quantity follows from it."""


def find_factors(cases: Sequence[Case], reference: RankNumbers, quantity: str) -> Iterator[Finding]:
    """Yield groups of tensors with one ratio, the same group of all layouts together.

    A factor is named when it is right in every layout: the one that differs is told from others of the same size by
    the layouts where sizes differ, or where it is 1.
    """
    found: dict[tuple[str, ...], dict[str, Group]] = {}
    for case in cases:
        if any(case.compared.of(earlier) for earlier in _CONSEQUENCE_OF.get(quantity, ())):
            continue
        for group in groups_of(case.compared, quantity, names_of(reference, quantity)):
            if group.ratio is not None:
                found.setdefault(group.patterns, {})[case.title] = group
    for patterns, groups in found.items():
        cause = _cause(cases, quantity, patterns, groups)
        shown = ", ".join(dict.fromkeys(f"x{group.ratio:.3f}" for group in groups.values()))
        prefix = f"{quantity} of " if quantity in ("gradients", "clipped") else ""
        worst = max(group.relative for group in groups.values())
        step = min(group.step for group in groups.values()) + 1
        yield Finding(
            layouts=tuple(groups),
            what=f"{prefix}{', '.join(patterns)}",
            ratio=shown if cause is None else f"{shown} = {cause.factor}",
            cause=None if cause is None else cause.why,
            details=f"relative difference {worst:.1e}, from step {step} on",
        )


def _cause(
    cases: Sequence[Case], quantity: str, patterns: tuple[str, ...], groups: Mapping[str, Group]
) -> FactorCause | None:
    for row in FACTOR_CAUSES:
        if row.quantity != quantity or not all(fnmatchcase(pattern, row.pattern) for pattern in patterns):
            continue
        if all(_fits(row, case, groups.get(case.title)) for case in cases):
            return row
    return None


def _fits(row: FactorCause, case: Case, group: Group | None) -> bool:
    """Say whether the factor is what is seen in a layout: the group's ratio, 1 where nothing differs, else anything."""
    value = factor_value(row.factor, case.sizes)
    if value is None:
        return False
    if group is None and case.compared.of(row.quantity):
        return True
    if group is None:
        return math.isclose(value, 1.0)
    assert group.ratio is not None
    return not math.isclose(value, 1.0) and math.isclose(group.ratio, value, rel_tol=_NEAR, abs_tol=_NEAR)
