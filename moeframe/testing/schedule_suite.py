"""The conformance kit for schedules. Subclass `ScheduleConformance` in a test module; needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from moeframe.testing import schedule_checks as checks
from moeframe.testing.ranks import RankPool

if TYPE_CHECKING:
    from moeframe.hooks.offers import ScheduleOffer

__all__ = ["ScheduleConformance"]


class ScheduleConformance:
    """Proves that a schedule keeps the protocol and states its traits truthfully.

    Subclass it and set `offer`, whose `build`, `traits` and `legal_micro_batches` must be importable. A fixture `ranks`
    must give a `RankPool` of the device with as many ranks as the largest of `sizes`:

        class TestMine(ScheduleConformance):
            offer = MY_OFFER
            options = {"stages_per_rank": 2}

    A toy model in stages is run and compared with one process in float64; it can be run phase by phase too.
    """

    offer: ClassVar[ScheduleOffer]
    """The offer under test."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the offer's options that differ from their defaults."""
    sizes: ClassVar[tuple[int, ...]] = (1, 2, 4)
    """Numbers of pipeline ranks to run on, as far as the traits allow them."""
    device: ClassVar[str] = "cpu"
    """Device type of the ranks: cpu or cuda."""
    timeout_s: ClassVar[float] = 60.0
    """Limit of each check."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check that needs ranks on every legal number of them."""
        if "size" in metafunc.fixturenames:
            legal = checks.sizes_of(self.subject().traits, max(self.sizes))
            sizes = [size for size in self.sizes if size in legal]
            metafunc.parametrize("size", sizes, ids=[f"pp{size}" for size in sizes])

    def subject(self) -> checks.Subject:
        """Return what is sent to the ranks."""
        return checks.Subject(offer=self.offer, options=self.options, device=self.device)

    def run(self, ranks: RankPool, size: int, check: Callable[[checks.Subject], None]) -> None:
        """Run a check on the first `size` ranks."""
        ranks.run(check, self.subject(), world_size=size, timeout=self.timeout_s)

    def test_plans_are_whole_and_end_where_traits_say(self) -> None:
        """In the simulator, for many numbers of ranks and micro-batches; needs no rank."""
        checks.check_plans(self.subject())

    def test_refused_numbers_of_micro_batches_are_refused_with_legal_ones(self) -> None:
        """`legal_micro_batches` lists numbers that it takes."""
        checks.check_counts(self.subject())

    def test_losses_and_gradients_are_those_of_one_process(self, ranks: RankPool, size: int) -> None:
        """Every legal number runs; one forward for each micro-batch; sums where the last stage is; gradients add up."""
        self.run(ranks, size, checks.check_steps)

    def test_an_evaluation_has_no_gradients_and_leaves_training_alone(self, ranks: RankPool, size: int) -> None:
        """Any number of micro-batches, one forward each."""
        self.run(ranks, size, checks.check_evaluation)

    def test_what_runs_is_the_plan(self, ranks: RankPool, size: int) -> None:
        """In its order, with weight gradients apart only where `splits_backward` is stated."""
        self.run(ranks, size, checks.check_order)
