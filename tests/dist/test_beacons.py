"""Beacons of ranks that train: they change no number, name every phase, and know each collective without a ledger."""

from __future__ import annotations

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from moeframe.config.load import load_recipe
from moeframe.debug.probes import TorchProbe
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Trainer
from moeframe.watch.beacon import Beacon, beacon_file, lit
from moeframe.watch.view import read_view

from .test_ledger import LAYOUTS, RECIPE, SMALL


class Kept:
    """Notes the places that a beacon is told of."""

    def __init__(self, beacon: Beacon) -> None:
        self.seen = []
        enter = beacon.enter

        def noted(place):
            self.seen.append((place.layer, place.phase, place.direction))
            enter(place)

        beacon.enter = noted


def three_steps(overrides: tuple[str, ...]) -> SimpleNamespace:
    """Return numbers of three steps without and with a beacon, and what it was told of."""
    found = SimpleNamespace(metrics=[], parameters=[], places=[])
    folder = Path(tempfile.mkdtemp())
    for with_beacon in (False, True):
        with ExitStack() as stack:
            if with_beacon:
                beacon = stack.enter_context(lit(folder, dist.get_rank(), {"rank": dist.get_rank(), "world_size": 4}))
                beacon.probe(TorchProbe(torch.device("cpu")))
                found.places = Kept(beacon).seen
            job = stack.enter_context(assemble(load_recipe(RECIPE, [*SMALL, *overrides])))
            trainer = Trainer(job, progress=False)
            metrics = [trainer.step(step) for step in range(3)]
            found.metrics.append([(one["loss"], one["grad_norm"]) for one in metrics])
            found.parameters.append(job.sharded.full_parameters())
    return found


@pytest.mark.parametrize(
    ("world", "ep", "dispatcher", "sharding", "more"), [pytest.param(*LAYOUTS[1], marks=pytest.mark.sweep), LAYOUTS[5]]
)
def test_a_beacon_changes_no_bit_and_sees_both_directions(ranks, world, ep, dispatcher, sharding, more) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
        *more,
    )
    places = set()
    for found in ranks.run(three_steps, overrides, world_size=world, timeout=200):
        assert found.metrics[0] == found.metrics[1]
        assert all(torch.equal(value, found.parameters[1][name]) for name, value in found.parameters[0].items())
        places |= set(found.places)
    phases = ("attend", "dispatch", "experts", "combine")
    assert {(1, phase, way) for phase in phases for way in ("forward", "backward")} <= places
    assert {(-1, phase, "forward") for phase in ("data", "gradients", "optimizer")} <= places


def a_rank_behind() -> list[dict]:
    """Rank 1 does not come to the third collective; return what each beacon says of both ranks."""
    rank = dist.get_rank()
    folder = (
        Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()) / f"beacons-{dist.get_world_size()}"
    )
    with lit(folder, rank, {"rank": rank, "world_size": 2}) as beacon:
        beacon.probe(TorchProbe(torch.device("cpu")))
        other = dist.new_group([0, 1], group_desc="other")
        for _ in range(2):
            dist.all_reduce(torch.ones(3), group=other)
        work = dist.all_reduce(torch.ones(5), group=other, async_op=True) if rank == 0 else None
        time.sleep(0.5)  # gloo's own thread marks a collective as over a moment after it is
        beacon.pulse(closely=True)
        dist.barrier()
        views = [read_view(beacon_file(folder, number), now=time.time()) for number in (0, 1)]
        dist.barrier()
        if rank == 1:
            dist.all_reduce(torch.ones(5), group=other)
        elif work is not None:
            work.wait()
    return [
        {
            "launched": {group.what: group.launched for group in view.groups},
            "pending": [str(one) for one in view.pending],
            "ages": [time.time() - one.created for one in view.collectives or ()],
        }
        for view in views
    ]


def test_launched_and_pending_collectives_are_known_without_the_ledger(ranks) -> None:
    for first, second in ranks.run(a_rank_behind, world_size=2):
        assert (first["launched"]["other"], second["launched"]["other"]) == (3, 2)
        assert first["pending"] == ["all_reduce Float [5], collective 3 of other"]
        assert second["pending"] == []
        assert all(0 <= age < 60 for age in (*first["ages"], *second["ages"]))
