"""Arithmetic on intervals of time: sorted, disjoint (start, end) in any unit. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["Interval", "common", "length", "union"]

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return the time that any of the intervals covers; empty ones cover none."""
    merged: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def common(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """Return the time that both cover; each as `union` returns it."""
    found: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            found.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(intervals: Iterable[Interval]) -> float:
    """Return the time that disjoint intervals cover."""
    return sum(end - start for start, end in intervals)
