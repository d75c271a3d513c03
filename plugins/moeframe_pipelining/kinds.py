"""The schedules as data: what each is made of. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from moeframe.hooks import NoOptions
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits
from moeframe_pipelining import counts, orders
from moeframe_pipelining.options import InterleavedOptions, ZeroBubbleOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision

__all__ = ["DUALPIPEV", "GPIPE", "INTERLEAVED_1F1B", "ONE_F_ONE_B", "ZBV", "ZERO_BUBBLE", "PipelineKind"]


@dataclass(frozen=True, kw_only=True)
class PipelineKind:
    """One of torch's schedules. `torch_class` is its name in torch.distributed.pipelining.schedules."""

    torch_class: str
    order: orders.Order
    legal: counts.Count
    options: type[Any] = NoOptions
    stages_per_rank: int = 1
    """Of kinds without that option."""
    splits_backward: bool = False
    placement: Literal["loop", "v"] = "loop"

    def per_rank(self, options: Any) -> int:
        """Return how many stages each rank has."""
        number = getattr(options, "stages_per_rank", self.stages_per_rank)
        assert isinstance(number, int)
        return number

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
            placement=self.placement,
            min_ranks=2,
        )

    def legal_micro_batches(self, options: Any, pp: int, n: int) -> str | None:  # noqa: ARG002 - same for all options
        """Return None when torch runs n micro-batches on pp ranks, else why not, with legal numbers."""
        return counts.refusal(self.legal, pp, n)

    def build(self, options: Any, context: ScheduleContext) -> Schedule:
        """Return the schedule; imports torch."""
        from moeframe_pipelining.pipeline import Pipeline

        return Pipeline(self, self.per_rank(options), context)


GPIPE: Final = PipelineKind(torch_class="ScheduleGPipe", order=orders.gpipe, legal=counts.any_number)
ONE_F_ONE_B: Final = PipelineKind(torch_class="Schedule1F1B", order=orders.one_f_one_b, legal=counts.at_least_ranks)
INTERLEAVED_1F1B: Final = PipelineKind(
    torch_class="ScheduleInterleaved1F1B",
    order=orders.interleaved_1f1b,
    legal=counts.whole_rounds,
    options=InterleavedOptions,
)
ZERO_BUBBLE: Final = PipelineKind(
    torch_class="ScheduleInterleavedZeroBubble",
    order=orders.zero_bubble,
    legal=counts.whole_rounds,
    options=ZeroBubbleOptions,
    splits_backward=True,
)
ZBV: Final = PipelineKind(
    torch_class="ScheduleZBVZeroBubble",
    order=orders.zbv,
    legal=counts.any_number,
    stages_per_rank=2,
    splits_backward=True,
    placement="v",
)
DUALPIPEV: Final = PipelineKind(
    torch_class="ScheduleDualPipeV",
    order=orders.dualpipev,
    legal=counts.at_least_stages,
    stages_per_rank=2,
    splits_backward=True,
    placement="v",
)
