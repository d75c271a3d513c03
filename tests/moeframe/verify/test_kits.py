"""`moeframe plugins test` runs every published check, on the rank pool, without pytest."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from moeframe_collectives.plugin import moeframe_offer_dispatchers
from moeframe_pipelining.plugin import moeframe_offer_schedules
from moeframe_torch_compute.plugin import moeframe_offer_computes
from moeframe_torch_sharding.plugin import moeframe_offer_shardings

from moeframe.hooks.offers import Offer
from moeframe.testing import compute_checks, dispatcher_checks, schedule_checks, sharding_checks, sharding_dtypes
from moeframe.testing.workloads import WORKLOADS
from moeframe.verify.kits import KITS, Trial

ALLTOALL = next(offer for offer in moeframe_offer_dispatchers() if offer.name == "alltoall")
LOCAL = next(offer for offer in moeframe_offer_dispatchers() if offer.name == "local")
REPLICATE = next(offer for offer in moeframe_offer_shardings() if offer.name == "replicate")
ZBV = next(offer for offer in moeframe_offer_schedules() if offer.name == "zbv")
(TORCH,) = moeframe_offer_computes()
HSDP = next(offer for offer in moeframe_offer_shardings() if offer.name == "hsdp")


def trials(offer: Offer, folder: Path) -> list[Trial]:
    return list(KITS[offer.kind](offer, "cpu", folder))


@pytest.mark.parametrize(
    ("offer", "modules"),
    [
        (ALLTOALL, (dispatcher_checks,)),
        (REPLICATE, (sharding_checks, sharding_dtypes)),
        (ZBV, (schedule_checks,)),
        (TORCH, (compute_checks,)),
    ],
    ids=["dispatcher", "sharding", "schedule", "compute"],
)
def test_every_published_check_is_run(offer: Offer, modules: tuple[ModuleType, ...], tmp_path: Path) -> None:
    published = {getattr(module, name) for module in modules for name in module.__all__ if name.startswith("check_")}
    run = {trial.call.func for trial in trials(offer, tmp_path) if isinstance(trial.call, partial)}
    assert run == published


def test_every_workload_is_run_on_every_legal_group(tmp_path: Path) -> None:
    names = [(trial.check, trial.ranks) for trial in trials(ALLTOALL, tmp_path)]
    assert {(f"workload {name}", size) for name in WORKLOADS for size in (1, 2, 4)} <= set(names)
    assert {trial.ranks for trial in trials(LOCAL, tmp_path)} == {1}


def test_what_traits_exclude_is_left_out_with_the_trait(tmp_path: Path) -> None:
    (left_out,) = {trial.excluded for trial in trials(ALLTOALL, tmp_path)} - {""}
    assert left_out == "static_shapes is false"
    assert all("replicas" in trial.check or trial.ranks > 1 for trial in trials(HSDP, tmp_path))
