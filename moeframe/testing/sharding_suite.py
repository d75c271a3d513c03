"""The conformance kit for sharding strategies. Subclass `ShardingConformance` in a test module; needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import DtypeName
from moeframe.testing import sharding_checks as checks
from moeframe.testing.ranks import RankPool
from moeframe.testing.sharding_bench import Subject, describe
from moeframe.testing.sharding_dtypes import check_dtypes

if TYPE_CHECKING:
    from moeframe.hooks.offers import ShardingOffer
    from moeframe.protocols.sharding import ShardingTraits

__all__ = ["LAYOUTS", "ShardingConformance"]


def _layout(world: int, ep: int, dp_replicate: int = 1, pp: int = 1) -> Degrees:
    return Degrees(world=world, pp=pp, dp_replicate=dp_replicate, ep=ep)


LAYOUTS = (
    _layout(1, 1),
    _layout(2, 1),
    _layout(2, 2),
    _layout(2, 1, 2),
    _layout(4, 1),
    _layout(4, 2),
    _layout(4, 4),
    _layout(4, 1, 2),
    _layout(4, 2, 2),
    _layout(4, 1, 4),
    _layout(4, 2, 1, 2),
    _layout(4, 1, 2, 2),
)
"""What the kit tests by default, as far as traits allow it."""


class ShardingConformance:
    """Proves that a sharding strategy keeps the protocol and states its traits truthfully.

    Subclass it and set `offer`, whose `build` and `traits` must be importable functions. A fixture `ranks` must give a
    `RankPool` of the device with as many ranks as the largest of `layouts`:

        class TestMine(ShardingConformance):
            offer = MY_OFFER
            options = {"bucket_bytes": 1024}

    A toy model is laid out and compared with one process in float64. What the traits exclude (replicas, none, few data
    ranks, pipelines, dtypes) is left out; that parameters stay whole is tested where it is stated.
    """

    offer: ClassVar[ShardingOffer]
    """The offer under test."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the offer's options that differ from their defaults."""
    layouts: ClassVar[Sequence[Degrees]] = LAYOUTS
    """Layouts to test, of 1 to 4 ranks."""
    device: ClassVar[str] = "cpu"
    """Device type of the ranks: cpu or cuda."""
    timeout_s: ClassVar[float] = 60.0
    """Limit of each check."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check on every layout, the ones that need no more on those of one size, and each in its variants."""
        if "layout" in metafunc.fixturenames:
            metafunc.parametrize("layout", self.legal_layouts(), ids=_id)
        if "wide" in metafunc.fixturenames:
            metafunc.parametrize("wide", self._wide(), ids=_id)
        if "saved" in metafunc.fixturenames:
            metafunc.parametrize(("saved", "loaded"), self._exchanges(), ids=_id)
        if "dtype" in metafunc.fixturenames:
            known = self.traits().dtypes
            metafunc.parametrize("dtype", [dtype for dtype in ("float64", "float32", "bfloat16") if dtype in known])

    def traits(self) -> ShardingTraits:
        """Return what the offer states for these options."""
        return self._subject().traits()

    def legal_layouts(self) -> list[Degrees]:
        """Return the layouts that the traits allow."""
        traits = self.traits()
        return [
            layout
            for layout in self.layouts
            if layout.data_ranks >= traits.min_data_ranks
            and (layout.dp_replicate == 1 or traits.supports_dp_replicate)
            and (layout.dp_replicate > 1 or not traits.needs_dp_replicate)
            and (layout.pp == 1 or traits.supports_pipeline)
        ]

    def test_gradients_are_the_sums_of_one_process(self, ranks: RankPool, layout: Degrees) -> None:
        """Dense parameters over all data ranks, experts over their holders; three micro-batches, unused parameters."""
        self._run(ranks, layout, checks.check_gradients)

    def test_the_norm_counts_everything_once_and_clips_alike(self, ranks: RankPool, layout: Degrees) -> None:
        """Each expert once, each dense parameter once, every stage."""
        self._run(ranks, layout, checks.check_norm_and_clipping)

    def test_three_steps_are_those_of_one_process(self, ranks: RankPool, layout: Degrees) -> None:
        """AdamW, one and three steps; forwards after each see the new weights."""
        self._run(ranks, layout, checks.check_steps)

    def test_one_process_without_a_group_computes_the_same(self) -> None:
        """A job of one process makes no process group; every mesh is refused then."""
        alone = _layout(1, 1)
        if alone not in self.legal_layouts():
            pytest.skip("the traits ask for more ranks")
        if self.device != "cpu":
            pytest.skip("runs in this process, on a CPU")
        checks.check_steps(self._subject(), alone)

    def test_micro_batches_add_up(self, ranks: RankPool, wide: Degrees) -> None:
        """One, and four; also where each expert has one holder, whose gradient must not grow."""
        for micro_batches in (1, 4):
            self._run(ranks, wide, checks.check_gradients, micro_batches=micro_batches)

    def test_any_number_of_experts(self, ranks: RankPool, wide: Degrees) -> None:
        """One and three experts on each rank: fewer than their holders, more, and not divided by them."""
        for local in (1, 3):
            self._run(ranks, wide, checks.check_steps, num_experts=local * wide.ep, steps=1)

    def test_units_may_be_called_one_by_one(self, ranks: RankPool, wide: Degrees) -> None:
        """Schedules run the phases of a block, not always the model."""
        self._run(ranks, wide, checks.check_units)

    def test_phases_may_have_a_backward_each_where_stated(self, ranks: RankPool, wide: Degrees) -> None:
        """The trait `runs_phases`."""
        if not self.traits().runs_phases:
            pytest.skip("runs_phases is false")
        self._run(ranks, wide, checks.check_phases)

    def test_a_rank_may_hold_several_stages(self, ranks: RankPool, wide: Degrees) -> None:
        """As interleaved and V-shaped pipelines do."""
        self._run(ranks, wide, checks.check_stages)

    def test_fewer_bits_stay_near(self, ranks: RankPool, wide: Degrees) -> None:
        """The same gradients in float32 and bfloat16, within their tolerances."""
        for precision in ("float32", "bfloat16"):
            if precision in self.traits().dtypes:
                self._run(ranks, wide, checks.check_gradients, precision=precision)

    def test_dtypes_of_rest_gather_and_sum(self, ranks: RankPool, wide: Degrees, dtype: DtypeName) -> None:
        """In bfloat16 weights, gradients and sums stay float32, and a router's weight arrives in it."""
        self._run(ranks, wide, check_dtypes, dtype)

    def test_state_goes_on_in_another_layout(
        self, ranks: RankPool, saved: Degrees, loaded: Degrees, tmp_path: Path
    ) -> None:
        """Weights, buffers and optimizer state, through a checkpoint; experts by their global number."""
        num_experts = 12
        self._run(ranks, saved, checks.check_save, tmp_path, num_experts)
        self._run(ranks, loaded, checks.check_load, tmp_path, num_experts, saved=saved)

    def test_parameters_stay_whole_where_stated(self, ranks: RankPool, wide: Degrees) -> None:
        """The trait `parameters_stay_whole`."""
        if not self.traits().parameters_stay_whole:
            pytest.skip("parameters_stay_whole is false")
        self._run(ranks, wide, checks.check_whole_parameters)

    def _subject(self) -> Subject:
        return Subject(offer=self.offer, options=self.options, device=self.device)

    def _run(
        self, ranks: RankPool, layout: Degrees, check: Callable[..., None], *args: object, **named: object
    ) -> None:
        call = partial(check, self._subject(), layout, *args, **named)
        ranks.run(call, world_size=layout.world, timeout=self.timeout_s)

    def _wide(self) -> list[Degrees]:
        """Return the legal layouts of one stage and the largest number of ranks among them."""
        legal = [layout for layout in self.legal_layouts() if layout.pp == 1]
        return [layout for layout in legal if layout.world == max(other.world for other in legal)]

    def _exchanges(self) -> list[tuple[Degrees, Degrees]]:
        """Pair every legal layout of one stage with the next, the last with the first."""
        legal = [layout for layout in self.legal_layouts() if layout.pp == 1]
        return list(zip(legal, [*legal[1:], *legal[:1]], strict=True))


def _id(layout: Degrees) -> str:
    return describe(layout).replace(", ", "-").replace(" ", "")
