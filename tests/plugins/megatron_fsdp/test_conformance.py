"""The strategy on the double of the package: the kit's checks, and what a package that goes wrong is told.

tests/gpu/test_megatron_fsdp.py runs the whole kit on the package itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from moeframe_megatron_fsdp.plugin import moeframe_offer_shardings
from moeframe_torch_sharding.plugin import moeframe_offer_shardings as other_offers

from moeframe.errors import PluginError
from moeframe.mesh.degrees import Degrees
from moeframe.testing import sharding_checks as checks
from moeframe.testing.ranks import RankError, RankPool
from moeframe.testing.sharding_bench import Bench, Subject
from moeframe.testing.sharding_dtypes import check_dtypes

(OFFER,) = moeframe_offer_shardings()


def subject(zero: int) -> Subject:
    return Subject(offer=OFFER, options={"zero": zero}, device="cpu")


def layout(world: int, ep: int, dp_replicate: int = 1) -> Degrees:
    return Degrees(world=world, pp=1, dp_replicate=dp_replicate, ep=ep)


def each(*calls: Callable[[], None]) -> None:
    for call in calls:
        call()


def test_experts_with_one_holder(ranks: RankPool) -> None:
    given = subject(3), layout(2, 2)
    ranks.run(
        each,
        partial(checks.check_gradients, *given, micro_batches=4),
        partial(checks.check_norm_and_clipping, *given),
        partial(checks.check_steps, *given),
        partial(check_dtypes, *given, "bfloat16"),
        world_size=2,
    )


def test_replicas_of_shards_with_units_and_stages_called_alone(ranks: RankPool) -> None:
    given = subject(3), layout(4, 2, 2)
    ranks.run(
        each,
        partial(checks.check_steps, *given),
        partial(checks.check_units, *given),
        partial(checks.check_stages, *given),
    )


@pytest.mark.parametrize("zero", [1, 2])
def test_whole_parameters(ranks: RankPool, zero: int) -> None:
    given = subject(zero), layout(2, 1)
    ranks.run(
        each, partial(checks.check_gradients, *given), partial(checks.check_whole_parameters, *given), world_size=2
    )


class InFloat32(Subject):
    """A strategy in the most exact dtype that megatron_fsdp has."""

    precision = "float32"


def other(name: str) -> Subject:
    offer = next(offer for offer in other_offers() if offer.name == name)
    return InFloat32(offer=offer, options={}, device="cpu")


@pytest.mark.parametrize(
    ("saves", "saved", "loads", "loaded"),
    [
        (subject(2), layout(4, 2), subject(3), layout(2, 2)),
        (subject(3), layout(2, 2), other("fsdp2"), layout(2, 1)),
        (other("replicate"), layout(2, 1), subject(1), layout(2, 2)),
    ],
)
def test_state_goes_on_in_another_layout_and_sharding(
    ranks: RankPool, tmp_path: Path, saves, saved, loads, loaded
) -> None:
    ranks.run(checks.check_save, saves, saved, tmp_path, 12, world_size=saved.world)
    ranks.run(partial(checks.check_load, loads, loaded, tmp_path, 12, saved=saved), world_size=loaded.world)


def go_wrong(way: str, zero: int, degrees: Degrees) -> None:
    import megatron_fsdp

    megatron_fsdp.WRONG.add(way)
    try:
        Bench(subject(zero), degrees)
    finally:
        megatron_fsdp.WRONG.clear()


@pytest.mark.parametrize(
    ("way", "degrees", "told"),
    [
        ("doubles", layout(2, 2), ("double with each micro-batch", "22 where 6 is right", "Use parallel.ep of 1,")),
        ("doubles", layout(2, 1, 2), ("in parameters that one rank", "Use parallel.dp_replicate of 1,")),
        ("averages", layout(2, 1), ("6 where 12 is right", "over 2 rank(s)")),
        ("stale", layout(2, 1), ("computes with a weight of", "where the optimizer has made it 0.8125")),
        ("by_attribute", layout(2, 1), ("tells experts from other parameters otherwise", "parts.0.weight")),
        ("loses", layout(2, 1), ("in no buffer: ['others.parts/0/weight']", "in two: none")),
    ],
)
def test_a_package_that_goes_wrong_is_refused_with_the_way_out(ranks: RankPool, way, degrees, told) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run(go_wrong, way, 3, degrees, world_size=2)
    assert isinstance(caught.value.error, PluginError)
    message = str(caught.value.error)
    assert "megatron_fsdp of no installed distribution" in message
    assert "sharding.name=fsdp2" in message
    for text in told:
        assert text in message
