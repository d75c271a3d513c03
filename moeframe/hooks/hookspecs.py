"""Every hook, in one file. Hooks only offer, check or observe; core decides. No hook runs inside a layer.

Core calls every hook with all arguments by keyword. An implementation may take any subset of them, by name and without
defaults. The host calls implementations one by one, so one that raises is named and does not silence the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from moeframe.config.schema import Recipe
    from moeframe.errors import Problem
    from moeframe.hooks.offers import ComputeOffer, DatasetOffer, DispatcherOffer, ScheduleOffer, ShardingOffer
    from moeframe.protocols.loads import LayerLoad
    from moeframe.protocols.stall import Stall
    from moeframe.trace import Place

hookspec = pluggy.HookspecMarker("moeframe")


@hookspec
def moeframe_offer_dispatchers() -> Sequence[DispatcherOffer]:  # type: ignore[empty-body]
    """Offer dispatchers.

    Called once when the plugin is loaded, in the launching process and on every rank. Imports no torch.
    Raising makes the plugin a broken one and stops no other.
    """


@hookspec
def moeframe_offer_shardings() -> Sequence[ShardingOffer]:  # type: ignore[empty-body]
    """Offer sharding strategies. When and how: as `moeframe_offer_dispatchers`."""


@hookspec
def moeframe_offer_schedules() -> Sequence[ScheduleOffer]:  # type: ignore[empty-body]
    """Offer schedules. When and how: as `moeframe_offer_dispatchers`."""


@hookspec
def moeframe_offer_computes() -> Sequence[ComputeOffer]:  # type: ignore[empty-body]
    """Offer compute backends. When and how: as `moeframe_offer_dispatchers`."""


@hookspec
def moeframe_offer_datasets() -> Sequence[DatasetOffer]:  # type: ignore[empty-body]
    """Offer data sets. When and how: as `moeframe_offer_dispatchers`."""


@hookspec
def moeframe_check_recipe(recipe: Recipe) -> Sequence[Problem]:  # type: ignore[empty-body]
    """Report what is wrong with a recipe beyond what core knows.

    Called after the recipe has been typed and composed, before any process starts. `recipe` is immutable. Return an
    empty sequence when nothing is wrong. Raising refuses the recipe and names the plugin.
    """


@hookspec
def moeframe_on_run_start(recipe: Recipe, run_dir: Path, rank: int, world_size: int) -> None:
    """Observe the start of a run: on every rank, once, before the first step. Raising ends the job."""


@hookspec
def moeframe_on_step_end(step: int, metrics: Mapping[str, float | str | None], loads: Sequence[LayerLoad]) -> None:
    """Observe the end of a step: on rank 0, once a step, after its line went to metrics.jsonl.

    `step` counts from 1. `metrics` are the values of that line, `loads` the tokens of every expert by MoE layer; both
    are global. Raising ends the job.
    """


@hookspec
def moeframe_on_failure(error: BaseException, place: Place, rank: int) -> None:
    """Observe a failure: on the rank that raised, once, before it ends. What it raises itself is logged only."""


@hookspec
def moeframe_on_stall(run_dir: Path, stall: Stall) -> None:
    """Observe the verdict on a job that stands still or has lost a rank, such as to call a person.

    Called once a verdict, after `stall/` was written and before the job is ended; in the process that watches the job
    and has reached the verdict (`moeframe run` itself, or under torchrun and Slurm the monitor of one node), never on a
    rank: those are stuck. No process group is there, and no GPU should be touched. What it raises is logged only.
    """


@hookspec
def moeframe_on_run_end(run_dir: Path, rank: int, summary: Mapping[str, Any]) -> None:
    """Observe the end of a run that reached its last step: on every rank, once. Raising ends the job with exit 1."""
