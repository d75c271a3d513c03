"""The likely causes of wrong numbers, as tables: what is wrong, by which factor, and the sentence that says why.

Rows are tried in order; the first that fits in every layout is named. Patterns are those of `fnmatch`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = [
    "BIAS_CAUSES",
    "FACTOR_CAUSES",
    "FORMULA_CAUSES",
    "NORM_CAUSES",
    "WEIGHT_CAUSES",
    "Factor",
    "FactorCause",
    "NormCause",
    "Squares",
    "factor_value",
]

Factor = str
"""A size of `Layout.factors`, ``1/`` and one, a number, or ``recompute`` (2 where layers are recomputed)."""

_EXPERTS: Final = "*.experts.routed.*"


@dataclass(frozen=True, kw_only=True)
class FactorCause:
    """`quantity` of parameters that match `pattern` is `factor` times what it must be."""

    quantity: str
    pattern: str
    factor: Factor
    why: str


def _row(quantity: str, pattern: str, factor: Factor, why: str) -> FactorCause:
    return FactorCause(quantity=quantity, pattern=pattern, factor=factor, why=why)


FACTOR_CAUSES: Final = (
    _row("gradients", _EXPERTS, "ep", "division by the ep size is missing"),
    _row(
        "gradients", _EXPERTS, "1/ep", "divided by the ep size, though the tokens of all ep ranks met in the dispatch"
    ),
    _row("gradients", _EXPERTS, "edp", "the sum over replicas of an expert runs twice, or a division is missing"),
    _row("gradients", _EXPERTS, "1/edp", "averaged over the replicas of an expert in place of summed"),
    _row("gradients", _EXPERTS, "1/dp", "averaged over all data ranks in place of summed over the expert's replicas"),
    _row("gradients", _EXPERTS, "dp", "summed over all data ranks in place of the expert's replicas"),
    _row("gradients", "*", "1/dp", "averaged over the data ranks in place of summed"),
    _row("gradients", "*", "dp", "summed over the data ranks twice"),
    _row("gradients", "*", "1/dp_shard", "averaged over the ranks of one replica in place of summed"),
    _row("gradients", "*", "1/dp_replicate", "averaged over replicas of the model in place of summed"),
    _row("gradients", "*", "dp_replicate", "summed over replicas of the model twice"),
    _row("gradients", "*", "ep", "summed over the ep ranks once more than over the data ranks"),
    _row("gradients", "*", "1/ep", "divided by the ep size"),
    _row("gradients", "*", "1/pp", "divided by the number of pipeline ranks"),
    _row("gradients", "*", "pp", "summed over the pipeline ranks"),
    _row("gradients", "mtp.*", "micro-batches", "the MTP loss is scaled by the number of micro-batches"),
    _row(
        "gradients", "*", "1/micro-batches", "divided by the number of micro-batches, though the loss is token-weighted"
    ),
    _row("gradients", "*", "micro-batches", "scaled by the number of micro-batches"),
    _row("gradients", "*", "1/world", "divided by the world size"),
    _row("gradients", "*", "world", "multiplied by the world size"),
    _row("gradients", "*", "recompute", "counted once more for the recomputed layers"),
    _row("gradients", "*", "0", "no gradient arrives"),
    _row("gradients", "*", "-1", "the sign is wrong"),
    _row("clipped", "*", "unclipped", "left out of clipping"),
    _row("loads", "*", "recompute", "tokens are counted a second time when their layer is recomputed"),
    _row("loads", "*", "pp", "summed over pipeline ranks that count the same layer"),
    _row("loads", "*", "ep", "summed over the ep ranks twice"),
    _row("loads", "*", "dp", "summed over the data ranks twice"),
    _row("loads", "*", "micro-batches", "scaled by the number of micro-batches"),
    _row(
        "losses", "balance_loss", "recompute", "the balance loss is counted a second time when its layer is recomputed"
    ),
    _row("losses", "mtp_loss", "micro-batches", "the MTP loss is scaled by the number of micro-batches"),
    _row("losses", "*", "micro-batches", "scaled by the number of micro-batches"),
    _row("losses", "*", "1/micro-batches", "divided by the number of micro-batches, though it is token-weighted"),
    _row("losses", "*", "pp", "summed over pipeline ranks that have the same tokens"),
    _row("losses", "*", "1/pp", "divided by the number of pipeline ranks"),
    _row("losses", "*", "dp", "summed over the data ranks twice"),
    _row("losses", "*", "1/dp", "a rank's own share in place of the sum over ranks, or averaged over ranks"),
    _row("losses", "*", "0", "no loss arrives at the rank that reports it"),
)
"""Whole tensors off by one factor."""


def factor_value(factor: Factor, sizes: Mapping[str, float]) -> float | None:
    """Return the value of a factor in a layout; None where the layout has no such size."""
    name = factor.removeprefix("1/")
    try:
        value = sizes[name] if name in sizes else float(name)
    except ValueError:
        return None
    return 1 / value if factor.startswith("1/") and value else value


WEIGHT_CAUSES: Final = (
    ("ce", "a mean over ranks of their own means", "mean of means: each rank divides by its own number of tokens"),
    ("ce", "a mean over micro-batches of their own means", "mean of means: each micro-batch divides by its own tokens"),
    ("ce", "a mean over sequences of their own means", "mean of means: each sequence divides by its own tokens"),
    ("mtp *", "micro-batches", "the MTP loss is scaled by the number of micro-batches"),
    ("mtp *", "1/micro-batches", "the MTP loss is divided by the number of micro-batches"),
    ("mtp *", "a mean over ranks of their own means", "mean of means: each rank divides by its own number of tokens"),
    (
        "mtp *",
        "a mean over micro-batches of their own means",
        "mean of means: each micro-batch divides by its own tokens",
    ),
    (
        "balance",
        "a mean over ranks of their own means",
        "the balance loss is the mean of the ranks' local values; divide its sum by the global number of tokens",
    ),
    (
        "balance",
        "a mean over micro-batches of their own means",
        "the balance loss is the mean of the micro-batches' values; divide its sum by the global number of tokens",
    ),
    ("balance", "recompute", "the balance loss is counted a second time when its layer is recomputed"),
    ("balance", "0", "the balance loss has no gradient"),
)
"""Weights of sequences in a loss: component, wrong mean (`weights.MEANS`) or factor, sentence."""


@dataclass(frozen=True, kw_only=True)
class Squares:
    """Sums of squares of the right gradients, and the sizes of the layout, as one rank sees them.

    `dense`, `experts`: of the whole model. `own_dense`, `own_experts`: of what this rank holds, whole parameters.
    `stage_experts`: of all experts of this rank's pipeline stage.
    """

    dense: float
    experts: float
    own_dense: float
    own_experts: float
    stage_experts: float
    sizes: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class NormCause:
    """The norm that a mistake gives."""

    norm: Callable[[Squares], float]
    why: str


NORM_CAUSES: Final = (
    NormCause(
        norm=lambda s: math.sqrt(s.own_dense + s.own_experts),
        why="the norm is local: it covers only what each rank holds; the sum over ranks is missing",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.dense + s.own_experts),
        why="the norm is local to each rank's experts; the sum over the ep ranks is missing",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.own_dense + s.stage_experts),
        why="the norm covers only this rank's pipeline stage; the sum over stages is missing",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.sizes["ep"] * s.dense + s.experts),
        why="dense parameters are counted once for each ep rank",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.dense + s.sizes["edp"] * s.experts),
        why="every replica of an expert is counted",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.sizes["dp"] * s.dense + s.experts),
        why="dense parameters are counted once for each data rank",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.sizes["dp"] * (s.dense + s.experts)),
        why="everything is counted once for each data rank",
    ),
    NormCause(
        norm=lambda s: math.sqrt(s.sizes["dp"] * s.dense + s.sizes["edp"] * s.experts),
        why="every copy of a parameter is counted",
    ),
    NormCause(norm=lambda s: math.sqrt(s.dense), why="routed experts are left out"),
    NormCause(norm=lambda s: math.sqrt(s.experts), why="only routed experts are counted"),
    NormCause(norm=lambda s: s.dense + s.experts, why="the square root is missing"),
)
"""Wrong clip norms."""

BIAS_CAUSES: Final = {
    "own loads": "each rank updates its bias from the tokens it has seen itself; sum the loads over all ranks first",
    "ranks differ": "ranks disagree about the bias: its update is local to the rank",
    "frozen": "the bias was not updated",
    "sign": "the bias moves towards more load; it must move away from it",
}
"""Wrong expert biases, by how they are recognised."""

FORMULA_CAUSES: Final = {
    "group mask with 0": "experts outside the kept groups are masked with 0 in place of -inf, which wins wherever "
    "biased scores are negative",
    "groups ignored": "experts are chosen without regard to groups",
    "bias ignored": "experts are chosen without the correction bias",
    "biased gates": "gates come from biased scores; they must come from the scores alone",
    "routing": "the routing is not that of the report (section 2.1.2)",
    "loads twice": "every token is counted twice, as when recomputation counts again",
    "loads": "the loads that update the bias are not those of the routing",
    "ce_loss": "the cross-entropy is not the sum over targets divided by their number",
    "mtp_loss": "the MTP loss is not the mean over depths of each depth's mean (report, equation 25)",
    "balance_loss": "the balance loss is not that of the report (equations 17 to 20), weighted by tokens",
    "backward": "the loss that is differentiated is not CE + lambda / D times the sum over MTP depths",
    "bias step": "the bias did not move by gamma towards balance (report, section 2.1.2)",
}
"""Broken formulas of the model, by `FormulaFinding.key`."""
