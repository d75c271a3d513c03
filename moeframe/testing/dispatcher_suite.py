"""The conformance kit for dispatchers. Subclass `DispatcherConformance` in a test module; needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from moeframe.protocols.precision import DtypeName
from moeframe.testing import dispatcher_checks as checks
from moeframe.testing.ranks import RankPool
from moeframe.testing.workloads import WORKLOADS

if TYPE_CHECKING:
    from moeframe.hooks.offers import DispatcherOffer
    from moeframe.protocols.dispatcher import DispatcherTraits

__all__ = ["DispatcherConformance"]


class DispatcherConformance:
    """Proves that a dispatcher keeps the protocol and states its traits truthfully.

    Subclass it and set `offer`, whose `build` and `traits` must be importable functions. A fixture `ranks` must give a
    `RankPool` of the device with at least as many ranks as the largest of `group_sizes`:

        class TestMine(DispatcherConformance):
            offer = MY_OFFER
            options = {"num_sms": 24}

    Data are small multiples of 1/2, so that every comparison is for equality in every dtype. What the traits exclude
    (a group size, unequal token counts, dropped assignments, a dtype) is skipped with the reason.
    """

    offer: ClassVar[DispatcherOffer]
    """The offer under test."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the offer's options that differ from their defaults."""
    group_sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    """Sizes of the ep group to test; those that the traits do not allow are left out."""
    device: ClassVar[str] = "cpu"
    """Device type of the ranks: cpu or cuda."""
    exact_dtype: ClassVar[DtypeName] = "float64"
    """dtype of the checks that one dtype is enough for; a dispatcher that cannot carry float64 sets another."""
    timeout_s: ClassVar[float] = 60.0
    """Limit of each check; a dispatcher that compiles kernels may need more."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check on every group size, and the ones that take a workload or a dtype with each."""
        if "group_size" in metafunc.fixturenames:
            traits = self.subject().traits
            sizes = [size for size in self.group_sizes if traits.allows_group(size)]
            metafunc.parametrize("group_size", sizes, ids=[f"ep{size}" for size in sizes])
        if "workload" in metafunc.fixturenames:
            metafunc.parametrize("workload", list(WORKLOADS))
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", ["float64", "float32", "bfloat16"])

    def subject(self, dtype: DtypeName | None = None) -> checks.Subject:
        """Return what is sent to the ranks."""
        return checks.Subject(
            offer=self.offer, options=self.options, device=self.device, dtype=dtype or self.exact_dtype
        )

    def run(self, ranks: RankPool, group_size: int, check: Callable[..., None], *args: object) -> None:
        """Run a check on the first `group_size` ranks."""
        ranks.run(check, *args, world_size=group_size, timeout=self.timeout_s)

    def test_rows_arrive_once_and_results_equal_the_formula(
        self, ranks: RankPool, group_size: int, workload: str
    ) -> None:
        """Rows grouped by expert, counts, output, gradients of x, gates and experts; repeated calls."""
        traits, load = self.subject().traits, WORKLOADS[workload]
        _skip_if_excluded(traits, ragged=load.ragged, drops=load.drops)
        self.run(ranks, group_size, checks.check_workload, self.subject(), workload)

    def test_results_keep_their_dtype(self, ranks: RankPool, group_size: int, dtype: DtypeName) -> None:
        """The same in every wire dtype: gates stay at least float32."""
        if dtype not in self.subject(dtype).traits.wire_dtypes:
            pytest.skip(f"wire_dtypes leaves out {dtype}")
        self.run(ranks, group_size, checks.check_workload, self.subject(dtype), "hot_expert")

    def test_combine_accumulates_in_at_least_float32(self, ranks: RankPool, group_size: int, dtype: DtypeName) -> None:
        """256 + 7 times 1 is 264 in bfloat16, not 256."""
        if dtype not in self.subject(dtype).traits.wire_dtypes:
            pytest.skip(f"wire_dtypes leaves out {dtype}")
        self.run(ranks, group_size, checks.check_accumulation, self.subject(dtype))

    def test_two_dispatches_can_be_in_flight(self, ranks: RankPool, group_size: int) -> None:
        """Both are right, combined in order and differentiated in reverse."""
        self.run(ranks, group_size, checks.check_in_flight, self.subject())

    def test_a_layout_serves_several_dispatches(self, ranks: RankPool, group_size: int) -> None:
        """Recomputation reuses the layout."""
        self.run(ranks, group_size, checks.check_reused_layout, self.subject())

    def test_no_graph_is_kept_without_gradients(self, ranks: RankPool, group_size: int) -> None:
        """Validation runs under no_grad."""
        self.run(ranks, group_size, checks.check_no_grad, self.subject())

    def test_inputs_that_traits_release_can_be_freed(self, ranks: RankPool, group_size: int) -> None:
        """`keeps_dispatch_input`, `keeps_expert_input` and `keeps_combine_input` are true where they must be."""
        self.run(ranks, group_size, checks.check_freed_inputs, self.subject())

    def test_equal_input_gives_equal_bits(self, ranks: RankPool, group_size: int) -> None:
        """The trait `deterministic`."""
        if not self.subject().traits.deterministic:
            pytest.skip("deterministic is false")
        self.run(ranks, group_size, checks.check_determinism, self.subject())

    def test_static_shapes_do_not_follow_the_routing(self, ranks: RankPool, group_size: int) -> None:
        """The trait `static_shapes`."""
        if not self.subject().traits.static_shapes:
            pytest.skip("static_shapes is false")
        self.run(ranks, group_size, checks.check_static_shapes, self.subject())

    def test_host_syncs_are_as_stated_and_only_in_layout(self, ranks: RankPool, group_size: int) -> None:
        """The trait `host_syncs_per_layer`, with few experts and with many."""
        self.run(ranks, group_size, checks.check_host_syncs, self.subject())

    def test_nothing_uninitialised_is_read(self, ranks: RankPool, group_size: int) -> None:
        """Buffers full of NaN change nothing."""
        self.run(ranks, group_size, checks.check_poisoned_buffers, self.subject())

    def test_invalid_ids_are_refused(self, ranks: RankPool, group_size: int) -> None:
        """On a CPU looking at ids costs no host sync, so it must be done."""
        if self.device != "cpu":
            pytest.skip("looking at ids costs a host sync here")
        self.run(ranks, group_size, checks.check_invalid_ids, self.subject())


def _skip_if_excluded(traits: DispatcherTraits, *, ragged: bool, drops: bool) -> None:
    if ragged and traits.needs_equal_tokens:
        pytest.skip("needs_equal_tokens: ranks pass equal numbers of tokens")
    if drops and not traits.supports_capacity_drop:
        pytest.skip("supports_capacity_drop is false: no id is -1")
