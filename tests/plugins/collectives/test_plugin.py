"""What the plugin offers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from moeframe_collectives.options import AllToAllOptions
from moeframe_collectives.plugin import moeframe_offer_dispatchers

from moeframe.protocols.precision import Precision


def test_offers_name_the_three_dispatchers() -> None:
    assert [offer.name for offer in moeframe_offer_dispatchers()] == ["local", "allgather", "alltoall"]


def test_offering_imports_no_torch() -> None:
    program = (
        "import sys; from moeframe_collectives.plugin import moeframe_offer_dispatchers as offer; "
        "from moeframe.protocols.precision import Precision; "
        "[o.traits(o.options(), Precision.of('float32')) for o in offer()]; sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize(
    ("options", "syncs", "async_comm"),
    [
        (AllToAllOptions(), 1, True),
        (AllToAllOptions(validate=True), 2, True),
        (AllToAllOptions(check_splits=True), 3, False),
    ],
)
def test_traits_of_alltoall_follow_its_options(options: AllToAllOptions, syncs: int, *, async_comm: bool) -> None:
    offer = next(offer for offer in moeframe_offer_dispatchers() if offer.name == "alltoall")

    traits = offer.traits(options, Precision.of("bfloat16"))

    assert traits.host_syncs_per_layer == syncs
    assert traits.async_comm is async_comm
