"""A few cells in place of all: every pair of values of two axes is in one of them at least. Needs no torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TypeVar

from moeframe.verify.matrix.cells import Cell
from moeframe.verify.matrix.record import Entry

__all__ = ["covering"]

OneT = TypeVar("OneT", Cell, Entry)
Pair = tuple[int, str, int, str]


def covering(cells: Sequence[OneT]) -> list[OneT]:
    """Return cells that hold every pair of values which any of the given ones holds.

    Greedy: each time one with the most pairs that are still missing, of equals the first. So the choice moves only when
    cells come or go.
    """
    missing = {pair for cell in cells for pair in _pairs(cell)}
    chosen: list[OneT] = []
    while missing:
        best = max(cells, key=lambda cell: len(missing & _pairs(cell)))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(cell: Cell | Entry) -> set[Pair]:
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(cell.key), 2)}
