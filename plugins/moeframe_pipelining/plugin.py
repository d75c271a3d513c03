"""Offers the pipeline schedules. Imports no torch; building one does."""

from __future__ import annotations

from collections.abc import Sequence

from moeframe.hooks import ScheduleOffer, hookimpl
from moeframe_pipelining.kinds import DUALPIPEV, GPIPE, INTERLEAVED_1F1B, ONE_F_ONE_B, ZBV, ZERO_BUBBLE

__all__ = ["moeframe_offer_schedules"]


@hookimpl
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:
    """Offer torch's pipeline schedules."""
    return [
        ScheduleOffer(
            name="gpipe",
            summary="all forwards, then all backwards; any number of micro-batches, all of their activations held",
            build=GPIPE.build,
            traits=GPIPE.traits,
            legal_micro_batches=GPIPE.legal_micro_batches,
        ),
        ScheduleOffer(
            name="1f1b",
            summary="one forward, one backward: the bubble of gpipe, activations of at most pp micro-batches",
            build=ONE_F_ONE_B.build,
            traits=ONE_F_ONE_B.traits,
            legal_micro_batches=ONE_F_ONE_B.legal_micro_batches,
        ),
        ScheduleOffer(
            name="interleaved_1f1b",
            summary="1f1b with several stages a rank: a smaller bubble for more messages",
            build=INTERLEAVED_1F1B.build,
            options=INTERLEAVED_1F1B.options,
            traits=INTERLEAVED_1F1B.traits,
            legal_micro_batches=INTERLEAVED_1F1B.legal_micro_batches,
        ),
        ScheduleOffer(
            name="zero_bubble",
            summary="weight gradients run apart and fill most of the bubble of 1f1b",
            build=ZERO_BUBBLE.build,
            options=ZERO_BUBBLE.options,
            traits=ZERO_BUBBLE.traits,
            legal_micro_batches=ZERO_BUBBLE.legal_micro_batches,
        ),
        ScheduleOffer(
            name="zbv",
            summary="zero bubble with two stages a rank, laid out in a V",
            build=ZBV.build,
            traits=ZBV.traits,
            legal_micro_batches=ZBV.legal_micro_batches,
        ),
        ScheduleOffer(
            name="dualpipev",
            summary="DeepSeek's DualPipe folded into a V: forwards beside backwards, few weight gradients apart",
            build=DUALPIPEV.build,
            traits=DUALPIPEV.traits,
            legal_micro_batches=DUALPIPEV.legal_micro_batches,
        ),
    ]
