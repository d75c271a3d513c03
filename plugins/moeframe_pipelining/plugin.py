"""Offers the pipeline schedules. Imports no torch; building one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from moeframe.hooks import NoOptions, ScheduleOffer, hookimpl
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits
from moeframe_pipelining import counts, orders
from moeframe_pipelining.options import InterleavedOptions, ZeroBubbleOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision

__all__ = ["KINDS", "PipelineKind", "moeframe_offer_schedules"]


@dataclass(frozen=True, kw_only=True)
class PipelineKind:
    """One of torch's schedules, as data. `torch_class` is its name in torch.distributed.pipelining."""

    torch_class: str
    summary: str
    order: orders.Order
    legal: counts.Count
    options: type[Any] = NoOptions
    stages_per_rank: int = 1
    """For kinds without that option."""
    splits_backward: bool = False
    in_v: bool = False

    def per_rank(self, options: Any) -> int:
        """Return the stages of each rank."""
        return getattr(options, "stages_per_rank", self.stages_per_rank)

    def traits(self, options: Any, precision: Precision) -> ScheduleTraits:  # noqa: ARG002 - same for all dtypes
        """Return what the rest of a job may rely on.

        Raises:
            ValueError: an option is out of its range.
        """
        per_rank = self.per_rank(options)
        if per_rank < 1:
            raise ValueError(f"stages_per_rank is {per_rank}; it must be 1 or more.")
        return ScheduleTraits(
            splits_backward=self.splits_backward,
            pipelines=True,
            stages_per_rank=per_rank,
            placement="v" if self.in_v else "loop",
            min_ranks=2,
        )


KINDS: Final = {
    "gpipe": PipelineKind(
        torch_class="ScheduleGPipe",
        summary="all forwards, then all backwards; any number of micro-batches, all of their activations held",
        order=orders.gpipe,
        legal=counts.any_number,
    ),
    "1f1b": PipelineKind(
        torch_class="Schedule1F1B",
        summary="one forward, one backward: the bubble of gpipe, activations of at most pp micro-batches",
        order=orders.one_f_one_b,
        legal=counts.at_least_ranks,
    ),
    "interleaved_1f1b": PipelineKind(
        torch_class="ScheduleInterleaved1F1B",
        summary="1f1b with several stages a rank: a smaller bubble for more messages",
        order=orders.interleaved_1f1b,
        legal=counts.whole_rounds,
        options=InterleavedOptions,
    ),
    "zero_bubble": PipelineKind(
        torch_class="ScheduleInterleavedZeroBubble",
        summary="weight gradients run apart and fill most of the bubble of 1f1b",
        order=orders.zero_bubble,
        legal=counts.whole_rounds,
        options=ZeroBubbleOptions,
        splits_backward=True,
    ),
    "zbv": PipelineKind(
        torch_class="ScheduleZBVZeroBubble",
        summary="zero bubble with two stages a rank in a V: losses appear on the first rank",
        order=orders.zbv,
        legal=counts.any_number,
        stages_per_rank=2,
        splits_backward=True,
        in_v=True,
    ),
    "dualpipev": PipelineKind(
        torch_class="ScheduleDualPipeV",
        summary="DeepSeek's DualPipe folded into a V: forwards beside backwards, weight gradients apart at the ends",
        order=orders.dualpipev,
        legal=counts.at_least_stages,
        stages_per_rank=2,
        splits_backward=True,
        in_v=True,
    ),
}
"""Every schedule, by its name in a recipe."""


def _build(kind: PipelineKind, options: Any, context: ScheduleContext) -> Schedule:
    from moeframe_pipelining.pipeline import Pipeline

    return Pipeline(kind, kind.per_rank(options), context)


def _legal(kind: PipelineKind) -> Callable[[Any, int, int], str | None]:
    return lambda _, pp, n: counts.refusal(kind.legal, pp, n)


@hookimpl
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:
    """Offer torch's pipeline schedules."""
    return [
        ScheduleOffer(
            name=name,
            summary=kind.summary,
            build=partial(_build, kind),
            options=kind.options,
            traits=kind.traits,
            legal_micro_batches=_legal(kind),
        )
        for name, kind in KINDS.items()
    ]
