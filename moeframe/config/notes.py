"""What a good recipe gives away: its parts fit, but do less than they could. Reads traits; knows no backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moeframe.config.misfit import counted
from moeframe.mesh.degrees import divisors

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["notes"]


def notes(composition: Composition) -> Iterator[str]:
    """Yield what the recipe's author may want to know, with numbers and the way out; nothing here is an error."""
    traits = composition.schedule.traits
    if traits.runs_phases:
        yield from _without_partner(composition)
        yield from _blocking(composition)
    if traits.pipelines:
        yield from _never_full(composition)


def _without_partner(c: Composition) -> Iterator[str]:
    if c.num_micro_batches > 1:
        return
    yield (
        f"schedule {c.schedule.offer.name!r} runs a micro-batch beside the next, and a step has 1: nothing overlaps. "
        f"{_more_micro_batches(c, 2)}"
    )


def _blocking(c: Composition) -> Iterator[str]:
    if c.dispatcher.traits.async_comm:
        return
    yield (
        f"dispatcher {c.dispatcher.offer.name!r} returns when its work is done (trait async_comm is false), so "
        f"schedule {c.schedule.offer.name!r} can hide nothing of it. Name a dispatcher with async_comm to gain from it."
    )


def _never_full(c: Composition) -> Iterator[str]:
    count, stages = c.num_micro_batches, c.num_stages
    if count >= stages:
        return
    given = counted(count, "micro-batch")
    yield (
        f"a step's {given} and {stages} pipeline stages: the pipeline drains before it is full, and its ranks wait for "
        f"each other more than they need. {_more_micro_batches(c, stages)}"
    )


def _more_micro_batches(c: Composition, wanted: int) -> str:
    """Return how a step gets that many micro-batches or more, in numbers that the schedule takes."""
    train, ranks = c.recipe.train, c.degrees.data_ranks
    sequences = train.global_batch_size // ranks

    def legal(count: int) -> bool:
        return c.schedule.offer.legal_micro_batches(c.schedule.options, c.degrees.pp, count) is None

    smaller = [size for size in divisors(sequences) if sequences // size >= wanted and legal(sequences // size)]
    more = next((count for count in range(wanted, 2 * wanted + 8) if legal(count)), None)
    ways = [f"train.micro_batch_size={max(smaller)}"] if smaller else []
    ways += [] if more is None else [f"train.global_batch_size={more * ranks * train.micro_batch_size}"]
    return f"Set {' or '.join(ways)}." if ways else "Give a step more micro-batches."
