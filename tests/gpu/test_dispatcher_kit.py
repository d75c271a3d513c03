"""The dispatchers with kernels of their own pass the published kit on two GPUs, in bfloat16, with difference 0.

The kit's numbers are small multiples of 1/2, whose sums bfloat16 holds exactly. `alltoall` runs it in
tests/plugins/collectives.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from moeframe_deepep.plugin import moeframe_offer_dispatchers

from moeframe.testing import dispatcher_checks as checks
from moeframe.testing.dispatcher_suite import DispatcherConformance

OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


class OnTwoGpus(DispatcherConformance):
    __test__ = False
    device = "cuda"
    group_sizes = (2,)
    exact_dtype = "bfloat16"
    timeout_s = 120.0  # hybridep compiles kernels for each new shape

    @pytest.fixture(autouse=True)
    def usable(self, require_usable) -> None:
        require_usable("dispatcher", self.offer.name)


class TestDeepEP(OnTwoGpus):
    __test__ = True
    offer = OFFERS["deepep"]
    options: ClassVar[dict[str, Any]] = {}


class TestHybridEP(OnTwoGpus):
    __test__ = True
    offer = OFFERS["hybridep"]


@pytest.mark.parametrize("workload", ["ragged", "dropped"])
def test_hybridep_passes_with_kernels_of_its_own_for_the_permutation(ranks, require_usable, workload: str) -> None:
    require_usable("dispatcher", "hybridep")
    subject = checks.Subject(offer=OFFERS["hybridep"], options={"fused": False}, device="cuda", dtype="bfloat16")
    ranks.run(checks.check_workload, subject, workload, world_size=2, timeout=120)
