"""Which layers make up a pipeline stage, and which rank runs it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal

__all__ = ["Placement", "rank_of_stage", "split_layers", "stages_of_rank"]

Placement = Literal["loop", "v"]
"""loop: stage s on rank s % ranks. v: there and back again, so that a rank holds the stages r and 2 ranks - 1 - r."""


def split_layers(num_layers: int, num_stages: int, given: Sequence[int] | None = None) -> tuple[range, ...]:
    """Return the layers of each stage, in order; together they are all layers, each once.

    Args:
        num_layers: layers of the whole model.
        num_stages: stages of the whole model.
        given: layers of each stage, as the user wants them; None: as even as possible, the first ones hold one more.

    Raises:
        ValueError: `given` does not fit, or a stage would be empty.
    """
    if given is None:
        least, more = divmod(num_layers, num_stages)
        given = [least + (stage < more) for stage in range(num_stages)]
    if len(given) != num_stages:
        raise ValueError(f"it lists {len(given)} stage(s), and there are {num_stages}")
    if sum(given) != num_layers:
        raise ValueError(f"it adds up to {sum(given)} layer(s), and the model has {num_layers}")
    if min(given) < 1:
        raise ValueError(
            f"stage {list(given).index(min(given))} would hold {min(given)} layer(s); each needs 1 or more"
        )
    return tuple(range(start, stop) for start, stop in pairwise(accumulate(given, initial=0)))


def stages_of_rank(rank: int, num_ranks: int, per_rank: int, placement: Placement) -> tuple[int, ...]:
    """Return the stages that a pipeline rank holds, in order."""
    return tuple(s for s in range(num_ranks * per_rank) if rank_of_stage(s, num_ranks, placement) == rank)


def rank_of_stage(stage: int, num_ranks: int, placement: Placement) -> int:
    """Return the pipeline rank that holds a stage."""
    turn, place = divmod(stage, num_ranks)
    return num_ranks - 1 - place if placement == "v" and turn % 2 else place
