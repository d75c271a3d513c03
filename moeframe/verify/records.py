"""What a job leaves behind to be compared: numpy arrays by global name, so that comparing needs no torch.

E experts of a layer, L MoE layers of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
import numpy.typing

__all__ = ["TENSORS", "Array", "FormulaFinding", "RankNumbers", "Sequences", "StepNumbers"]

Array: TypeAlias = numpy.typing.NDArray[Any]

TENSORS = ("gradients", "clipped", "biases", "parameters")
"""Fields of `StepNumbers` that hold tensors by name, in the order in which a step makes them."""


@dataclass(frozen=True, kw_only=True)
class StepNumbers:
    """One optimizer step on one rank.

    `losses`: global values by name. `loads` (L, E): tokens of each expert in the step, over all ranks, as the job gave
    them to the update of the biases. `own_loads`: what this rank's routers chose, (E,) by bias name. `gradients`:
    before clipping. `clipped`: after. `biases`: correction biases after their update. `parameters`: after the
    optimizer. Experts are this rank's.
    """

    losses: Mapping[str, float]
    loads: Array
    own_loads: Mapping[str, Array]
    grad_norm: float
    gradients: Mapping[str, Array]
    clipped: Mapping[str, Array]
    biases: Mapping[str, Array]
    parameters: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class FormulaFinding:
    """Something that does not follow the model's own formulas, whatever the layout. `key` names the rule in `causes`.

    `observed` and `expected` are worth showing; `what` says of what.
    """

    key: str
    what: str
    observed: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """What each sequence of a global batch brings to the losses, in the order of the batch.

    `sums` and `tokens` by component (``ce``, ``mtp 1`` ..., ``balance``): (G,) sums over the tokens that count, and how
    many they are. A global loss is the sum of the sums over the sum of the tokens.
    """

    sums: Mapping[str, Array]
    tokens: Mapping[str, Array]


@dataclass(frozen=True, kw_only=True)
class RankNumbers:
    """What one rank measured.

    `experts`: names of parameters that stack experts; this rank's are `first_expert` and the following ones.
    `own_sequences`: for each of its micro-batches the positions in the global batch. `formulas`: broken ones.
    `sequences`: of the first step; only of the reference.
    """

    rank: int
    data_rank: int
    pipeline_rank: int
    first_expert: int
    experts: frozenset[str]
    own_sequences: tuple[tuple[int, ...], ...]
    steps: tuple[StepNumbers, ...]
    formulas: tuple[FormulaFinding, ...]
    sequences: Sequences | None = None
