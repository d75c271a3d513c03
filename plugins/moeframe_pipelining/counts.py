"""Which numbers of micro-batches torch's schedules run. Importable without torch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice

from moeframe_pipelining.orders import rounds

__all__ = ["Count", "any_number", "at_least_ranks", "at_least_stages", "next_legal", "refusal", "whole_rounds"]

Count = Callable[[int, int], str | None]
"""Takes pipeline ranks and micro-batches; returns the rule that the number breaks, None when it is legal."""


def any_number(num_ranks: int, n: int) -> str | None:  # noqa: ARG001 - no rule
    """Every number is legal."""
    return None


def at_least_ranks(num_ranks: int, n: int) -> str | None:
    """1F1B fills the pipeline before its first backward."""
    return None if n >= num_ranks else f"it needs as many micro-batches as pipeline ranks ({num_ranks}) or more"


def at_least_stages(num_ranks: int, n: int) -> str | None:
    """DualPipeV fills both directions of its V."""
    return None if n >= 2 * num_ranks else f"it needs as many micro-batches as stages ({2 * num_ranks}) or more"


def whole_rounds(num_ranks: int, n: int) -> str | None:
    """Interleaved schedules run in n // P rounds (1 at least) of equal length."""
    number = rounds(num_ranks, n)
    if n % number == 0:
        return None
    return f"it cuts {n} micro-batches into {n} // {num_ranks} = {number} rounds, which must be equally long"


def next_legal(rule: Count, num_ranks: int, n: int) -> int:
    """Return the smallest legal number that is n or more."""
    return next(legal for legal in count(max(1, n)) if rule(num_ranks, legal) is None)


def refusal(rule: Count, num_ranks: int, n: int) -> str | None:
    """Return None when n is legal, else why not, with the legal numbers."""
    broken = rule(num_ranks, n)
    if broken is None:
        return None
    near = [legal for legal in range(max(1, n - 2 * num_ranks), n) if rule(num_ranks, legal) is None]
    near += islice((legal for legal in count(n + 1) if rule(num_ranks, legal) is None), 4)
    return f"{broken}. Legal near {n}: {', '.join(map(str, near))}."
