"""The dispatchers with kernels of their own pass the published kit on two GPUs, in bfloat16, with difference 0.

The kit's numbers are small multiples of 1/2, whose sums bfloat16 holds exactly. `alltoall` runs it in
tests/plugins/collectives.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from moeframe_deepep.plugin import moeframe_offer_dispatchers

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
    """Each number of local experts has kernels of its own, which take half a minute to compile: so two numbers only."""

    __test__ = True
    offer = OFFERS["hybridep"]

    @pytest.fixture(autouse=True)
    def few_shapes(self, request: pytest.FixtureRequest) -> None:
        case = getattr(request.node, "callspec", None)
        if case is not None and case.params.get("workload") in ("odd_sizes", "single_choice"):
            pytest.skip("another number of local experts: tests/plugins/deepep runs it on the double")

    def test_host_syncs_are_as_stated_and_only_in_layout(self) -> None:
        pytest.skip("other numbers of local experts: tests/plugins/deepep runs it on the double")
