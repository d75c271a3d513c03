"""What weight each sequence has in a loss or a gradient, and which wrong mean gives such weights. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy

from moeframe.verify.records import Array, RankNumbers, Sequences

__all__ = [
    "MEANS",
    "PROBE",
    "Basis",
    "Division",
    "division_of",
    "loss_under",
    "matching_mean",
    "uniform_weight",
    "weights_in",
]

PROBE: Final = "embedding.weight"
"""The parameter whose gradient is taken apart; every loss reaches it."""

_RESIDUAL: Final = 1e-7
_WEIGHT: Final = 1e-5

Parts: TypeAlias = Sequence[Sequence[int]]
"""Positions of sequences in the global batch, part by part."""


@dataclass(frozen=True, kw_only=True)
class Basis:
    """By component (as in `Sequences`) the gradients of `PROBE`, (G, elements), of sums over the sequence's tokens."""

    gradients: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class Division:
    """How a layout cut the global batch: between data ranks, and into micro-batches."""

    ranks: Parts
    micro_batches: Parts


def division_of(ranks: Sequence[RankNumbers]) -> Division:
    """Return the division of a layout; pipeline ranks see the same sequences and count once."""
    first = [numbers for numbers in ranks if numbers.pipeline_rank == 0]
    return Division(
        ranks=[[position for batch in numbers.own_sequences for position in batch] for numbers in first],
        micro_batches=[batch for numbers in first for batch in numbers.own_sequences],
    )


def _mean_of_parts(tokens_G: Array, parts: Parts) -> Array:
    """Return the weights, relative to the right ones, when each part has its own mean and the means are averaged."""
    weights_G = numpy.zeros(len(tokens_G))
    for part in parts:
        own = tokens_G[list(part)].sum()
        weights_G[list(part)] = tokens_G.sum() / (len(parts) * own) if own else 0.0
    return weights_G


MEANS: Final[Mapping[str, Callable[[Array, Division], Array]]] = {
    "a mean over ranks of their own means": lambda tokens_G, cut: _mean_of_parts(tokens_G, cut.ranks),
    "a mean over micro-batches of their own means": lambda tokens_G, cut: _mean_of_parts(tokens_G, cut.micro_batches),
    "a mean over sequences of their own means": lambda tokens_G, cut: _mean_of_parts(
        tokens_G, [[position] for part in cut.ranks for position in part]
    ),
}
"""Wrong means by name: tokens of each sequence and the division -> weights relative to the right ones."""


def weights_in(gradient: Array, basis: Basis, sequences: Sequences) -> dict[str, Array] | None:
    """Take a gradient apart.

    Returns:
        By component the weight of each sequence relative to the right one, NaN where it has none; None when the
        gradient is no sum of the parts.
    """
    columns, places = [], []
    for name, gradients in basis.gradients.items():
        total = sequences.tokens[name].sum()
        for position, part in enumerate(gradients):
            if total and numpy.abs(part).max() > 0:
                columns.append(part / total)
                places.append((name, position))
    matrix = numpy.stack(columns, axis=1)
    scale = numpy.linalg.norm(matrix, axis=0)
    solution, *_ = numpy.linalg.lstsq(matrix / scale, gradient.ravel(), rcond=1e-12)
    residual = numpy.linalg.norm(matrix / scale @ solution - gradient.ravel())
    if not residual <= _RESIDUAL * numpy.linalg.norm(gradient):
        return None
    found = {name: numpy.full(len(gradients), numpy.nan) for name, gradients in basis.gradients.items()}
    for (name, position), weight in zip(places, solution / scale, strict=True):
        found[name][position] = weight
    return found


def matching_mean(weights_G: Array, tokens_G: Array, cut: Division) -> str | None:
    """Return which wrong mean gives these weights, ``right`` for the right one, None for none that is known."""
    there = numpy.isfinite(weights_G) & (tokens_G > 0)
    if numpy.allclose(weights_G[there], 1.0, rtol=_WEIGHT):
        return "right"
    for name, rule in MEANS.items():
        if numpy.allclose(weights_G[there], rule(tokens_G, cut)[there], rtol=_WEIGHT):
            return name
    return None


def uniform_weight(weights_G: Array) -> float | None:
    """Return the weight that all sequences have; None when they differ."""
    there = weights_G[numpy.isfinite(weights_G)]
    if not len(there) or not numpy.allclose(there, there[0], rtol=_WEIGHT):
        return None
    return float(there[0])


def loss_under(rule: str, component: str, sequences: Sequences, cut: Division) -> float:
    """Return the value of a loss component under a wrong mean."""
    tokens_G, sums_G = sequences.tokens[component], sequences.sums[component]
    total = tokens_G.sum()
    return float((MEANS[rule](tokens_G, cut) * sums_G).sum() / total) if total else 0.0
