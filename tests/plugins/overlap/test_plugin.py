from __future__ import annotations

import pytest
from moeframe_overlap.options import OverlapOptions
from moeframe_overlap.plan import plan
from moeframe_overlap.plugin import moeframe_offer_schedules

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.schedule.simulate import simulate


def test_forwards_run_ahead_of_backwards_by_one() -> None:
    assert str(plan(1, 3)) == "rank 0: 0F0 0F1 0B0 0F2 0B1 0B2"
    for number in (1, 2, 5):
        simulated = simulate(plan(1, number))
        assert simulated.bubble == 0
        assert simulated.peak_live == (min(2, number),)


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(ContractError, match="one stage, not 2"):
        plan(2, 4)


def test_the_offer_says_what_the_schedule_needs_of_others() -> None:
    (offer,) = moeframe_offer_schedules()
    traits = offer.traits(OverlapOptions(), Precision.of("bfloat16"))
    assert traits.runs_phases
    assert traits.splits_backward
    assert not traits.pipelines
    assert all(offer.legal_micro_batches(OverlapOptions(), 1, number) is None for number in (1, 2, 5))
