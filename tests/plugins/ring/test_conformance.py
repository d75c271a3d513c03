"""A dispatcher from outside the project passes the published kit, as its author would run it."""

from __future__ import annotations

import sys
from pathlib import Path

from moeframe.testing import dispatcher_checks as checks
from moeframe.testing.dispatcher_suite import DispatcherConformance
from moeframe.testing.ranks import RankPool

# The ranks get this process's search path. That the package installs is shown in tests/e2e.
sys.path.append(str(Path(__file__).parents[2] / "data" / "thirdparty_dispatcher"))

from moeframe_ring.plugin import moeframe_offer_dispatchers

RING = moeframe_offer_dispatchers()[0]


class TestRing(DispatcherConformance):
    offer = RING
    group_sizes = (1, 3)


def test_the_ring_may_run_the_other_way(ranks: RankPool) -> None:
    subject = checks.Subject(offer=RING, options={"reverse": True}, device="cpu", dtype="float64")
    ranks.run(checks.check_workload, subject, "ragged", world_size=3)
