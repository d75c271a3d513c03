"""Both dispatchers pass the published kit, on a double of the library. Four ranks and the other APIs: what differs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from moeframe_deepep.plugin import moeframe_offer_dispatchers

from moeframe.testing import dispatcher_checks as checks
from moeframe.testing.dispatcher_suite import DispatcherConformance
from moeframe.testing.ranks import RankPool

pytestmark = pytest.mark.usefixtures("no_folder_stays")

OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


class TestDeepEP(DispatcherConformance):
    offer = OFFERS["deepep"]
    options: ClassVar[dict[str, Any]] = {"api": "buffer"}
    exact_dtype = "bfloat16"
    group_sizes = (2,)


class TestHybridEP(DispatcherConformance):
    offer = OFFERS["hybridep"]
    exact_dtype = "bfloat16"
    group_sizes = (2,)


@pytest.mark.parametrize(
    ("name", "options", "group_size", "workload"),
    [
        pytest.param("deepep", {"api": "buffer"}, 4, "ragged", marks=pytest.mark.sweep),
        ("deepep", {"api": "elastic"}, 2, "ragged"),
        ("deepep", {"api": "elastic"}, 2, "dropped"),
        ("hybridep", {}, 4, "ragged"),
        ("hybridep", {"fused": False}, 2, "dropped"),
    ],
)
def test_other_sizes_and_apis_pass_too(
    ranks: RankPool, name: str, options: dict[str, Any], group_size: int, workload: str
) -> None:
    subject = checks.Subject(offer=OFFERS[name], options=options, device="cpu", dtype="bfloat16")
    ranks.run(checks.check_workload, subject, workload, world_size=group_size)
