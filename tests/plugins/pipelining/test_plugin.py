"""What the plugin offers."""

from __future__ import annotations

import pytest
from moeframe_pipelining.options import InterleavedOptions, ZeroBubbleOptions
from moeframe_pipelining.plugin import moeframe_offer_schedules

from moeframe.protocols.precision import Precision

OFFERS = {offer.name: offer for offer in moeframe_offer_schedules()}
POLICY = Precision.of("float32")


def traits(name: str):
    offer = OFFERS[name]
    return offer.traits(offer.options(), POLICY)


def test_six_schedules_are_offered() -> None:
    assert list(OFFERS) == ["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev"]


def test_traits_say_who_splits_the_backward_and_where_stages_are() -> None:
    assert [name for name in OFFERS if traits(name).splits_backward] == ["zero_bubble", "zbv", "dualpipev"]
    assert [name for name in OFFERS if traits(name).placement == "v"] == ["zbv", "dualpipev"]
    assert {name: traits(name).stages_per_rank for name in OFFERS} == {
        "gpipe": 1,
        "1f1b": 1,
        "interleaved_1f1b": 2,
        "zero_bubble": 1,
        "zbv": 2,
        "dualpipev": 2,
    }
    assert all(traits(name).pipelines and traits(name).min_ranks == 2 for name in OFFERS)


@pytest.mark.parametrize("options", [InterleavedOptions(stages_per_rank=3), ZeroBubbleOptions(stages_per_rank=3)])
def test_interleaved_schedules_have_as_many_stages_a_rank_as_asked(options) -> None:
    name = "interleaved_1f1b" if isinstance(options, InterleavedOptions) else "zero_bubble"
    assert OFFERS[name].traits(options, POLICY).stages_per_rank == 3
    with pytest.raises(ValueError, match="stages_per_rank is 0; it must be 1 or more"):
        OFFERS[name].traits(type(options)(stages_per_rank=0), POLICY)


def test_legal_numbers_of_micro_batches_come_from_torchs_rules() -> None:
    legal = {
        name: [n for n in range(1, 10) if offer.legal_micro_batches(offer.options(), 4, n) is None]
        for name, offer in OFFERS.items()
    }
    assert legal["gpipe"] == legal["zbv"] == list(range(1, 10))
    assert legal["1f1b"] == list(range(4, 10))
    assert legal["interleaved_1f1b"] == legal["zero_bubble"] == list(range(1, 9))
    assert legal["dualpipev"] == [8, 9]
