"""The report of a stall for people: one table, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeframe.protocols.stall import Stall, StalledRank
from moeframe.trace import told

__all__ = ["report_lines", "table_lines", "verdict_text"]

_HEAD = ("rank", "state", "last finished", "waiting in", "since")
_SHOWN = 64
"""Ranks that are shown; of a larger job the table in stall/table.txt has all."""


def _row(rank: StalledRank) -> tuple[str, ...]:
    where = str(rank.place) if rank.inside else told("after", rank.place)
    waits = f"{where}: {rank.waits_in}" if rank.waits_in else where
    finished = str(rank.finished) if rank.finished.phase else "-"
    return str(rank.rank), rank.state, finished, waits, f"{rank.since[11:19]} ({rank.still_s:.1f} s)"


def table_lines(table: Sequence[StalledRank], *, shown: int | None = None) -> list[str]:
    """Return the table with its head; of more than `shown` ranks only so many."""
    rows = [_HEAD, *(_row(rank) for rank in table[:shown])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    left = len(table) - (len(rows) - 1)
    return [*lines, f"... {left} more ranks"] if left else lines


def verdict_text(verdict: Stall | Mapping[str, Any]) -> str:
    """Return a verdict, or what `StallDirectory.verdict` read of it, in one line: what logs and terminals end with."""
    told = verdict.as_json() if isinstance(verdict, Stall) else verdict
    return f"{told['kind']}: {told['cause']}"


def report_lines(stall: Stall, *, shown: int | None = _SHOWN) -> list[str]:
    """Return table, verdict and advice."""
    return [
        *table_lines(stall.table, shown=shown),
        f"verdict: {verdict_text(stall)}",
        f"what to do: {stall.advice}",
    ]
