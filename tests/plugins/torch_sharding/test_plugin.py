"""What the plugin offers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from moeframe_torch_sharding.options import Fsdp2Options
from moeframe_torch_sharding.plugin import moeframe_offer_shardings

from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Sharding

OFFERS = {offer.name: offer for offer in moeframe_offer_shardings()}
PRECISION = Precision.of("bfloat16")


def test_offering_imports_no_torch() -> None:
    program = (
        "import sys; from moeframe_torch_sharding.plugin import moeframe_offer_shardings as offer; "
        "from moeframe.protocols.precision import Precision; "
        "[o.traits(o.options(), Precision.of('float32')) for o in offer()]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_every_strategy_builds_with_default_options() -> None:
    assert sorted(OFFERS) == ["fsdp2", "hsdp", "replicate", "zero1"]
    for offer in OFFERS.values():
        assert isinstance(offer.build(offer.options()), Sharding)


@pytest.mark.parametrize(
    ("dense", "experts", "whole"),
    [(True, None, False), (False, None, True), (True, False, False), (False, True, False), (False, False, True)],
)
@pytest.mark.parametrize("name", ["fsdp2", "hsdp"])
def test_parameters_stay_whole_only_if_nothing_is_freed(
    name: str, dense: bool, experts: bool | None, whole: bool
) -> None:
    options = Fsdp2Options(reshard_after_forward=dense, reshard_experts_after_forward=experts)
    assert OFFERS[name].traits(options, PRECISION).parameters_stay_whole is whole


def test_replicas_of_the_data_ranks_are_legal_where_a_strategy_knows_them() -> None:
    traits = {name: offer.traits(offer.options(), PRECISION) for name, offer in OFFERS.items()}
    assert {name for name, found in traits.items() if found.supports_dp_replicate} == {"replicate", "zero1", "hsdp"}
    assert {name for name, found in traits.items() if found.needs_dp_replicate} == {"hsdp"}
    assert {name for name, found in traits.items() if found.parameters_stay_whole} == {"replicate", "zero1"}
