"""One rank of a job: join, assemble, train, and say why when it fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from moeframe import trace
from moeframe.config.compose import Composition
from moeframe.config.load import LoadedRecipe, load_recipe, with_overrides
from moeframe.debug.probes import TorchProbe, on_compiling
from moeframe.errors import JobFailedError, MoeframeError
from moeframe.launch.environment import World
from moeframe.launch.group import this_process
from moeframe.launch.output import lasting_output
from moeframe.train.assemble import Job, assemble
from moeframe.train.failure import Failure, read_failures, root_cause, watching_the_others, write_failure
from moeframe.train.random_state import seed_random_state
from moeframe.train.resume import launch_identity
from moeframe.train.run_directory import RunDirectory
from moeframe.train.trainer import Summary
from moeframe.watch.beacon import Beacon, lit
from moeframe.watch.stall import StallDirectory
from moeframe.watch.table import verdict_text

__all__ = ["main", "work"]

logger = logging.getLogger(__name__)


class _RankLog(logging.FileHandler):
    """A log whose disk is full does not bury the failure that follows from it."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  the base class calls it so
        """Say nothing."""


def _log_to(run_dir: RunDirectory, rank: int) -> None:
    handler = _RankLog(run_dir.log_dir / f"rank-{rank}.log", encoding="utf-8")
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)
    if rank == 0:  # what a person should know does not hide in a file
        console = logging.StreamHandler()
        console.setLevel(logging.WARNING)
        console.addFilter(lambda record: record.levelno == logging.WARNING)  # failures are told by who started the job
        console.setFormatter(logging.Formatter("warning: %(message)s"))
        logging.getLogger().addHandler(console)
    logging.getLogger().setLevel(logging.INFO)


def work(run_dir: RunDirectory, resume_step: int = 0, plugins: Sequence[str] = ()) -> Summary:
    """Train the recipe of a run directory on this rank.

    A failure goes to the run directory and to this rank's log, with its place and traceback. What is raised names the
    rank that failed first, also where this one has only lost its peer.
    """
    world = this_process()
    _log_to(run_dir, world.rank)
    try:
        with (
            lit(run_dir.path, world.rank, {"rank": world.rank, "world_size": world.world_size}) as beacon,
            watching_the_others(run_dir.log_dir, world.rank, lambda: beacon.end(failed=True)),
        ):
            return _train(run_dir, world, beacon, resume_step, plugins)
    except BaseException as error:  # a SystemExit of a plugin, too
        own = _reported(run_dir, world, error)
        root = root_cause(run_dir.log_dir, own)
        verdict = StallDirectory(run_dir=run_dir.path).verdict() if root.secondhand else None
        if verdict is not None:  # the watchdog has ended the rank whose loss this one felt
            cause = verdict_text(verdict)
            logger.error("the job ends: %s", cause)  # noqa: TRY400  the traceback says only what was lost
            raise JobFailedError(f"rank {world.rank} ends with the job. {cause}") from error
        if root.rank == world.rank:
            if isinstance(error, SystemExit):
                raise JobFailedError(str(own)) from error
            raise
        logger.error("the cause is on another rank.\n%s", root.full)  # noqa: TRY400  the traceback is the other rank's
        raise JobFailedError(f"rank {world.rank} ends because another rank has failed.\n{root.full}") from error


def _train(run_dir: RunDirectory, world: World, beacon: Beacon, resume_step: int, plugins: Sequence[str]) -> Summary:
    job: Job | None = None
    try:
        loaded = _recipe(run_dir, resume_step)
        recipe = loaded.recipe
        seed_random_state(recipe.train.seed, world.rank)
        if recipe.train.compile:
            on_compiling(beacon.compiling)
        with assemble(loaded, plugins=plugins) as job:
            beacon.fused = job.composition.dispatcher.traits.fused
            beacon.probe(TorchProbe(job.meshes.device, fused=beacon.fused))
            try:
                return _run(run_dir, job, beacon, resume_step)
            except BaseException as error:
                # Before the job is taken down: that may wait for ranks which wait for this one.
                _reported(run_dir, world, error)
                raise
    except BaseException as error:
        if job is not None:
            if job.ledger is not None:
                job.ledger.write(run_dir.ledger_file(world.rank))
            job.host.call_each("moeframe_on_failure", error=error, place=trace.current(), rank=world.rank)
        raise


def _run(run_dir: RunDirectory, job: Job, beacon: Beacon, resume_step: int) -> Summary:
    """Train a job from its first hook to its last."""
    rank = job.world.rank
    _record(run_dir, job)
    if rank == 0:
        for one in job.composition.substitutions:
            logger.warning("%s", one)
    job.host.call_each(
        "moeframe_on_run_start",
        recipe=job.recipe,
        run_dir=run_dir.path,
        rank=rank,
        world_size=job.world.world_size,
    )
    summary = job.train(run_dir.path, resume_step=resume_step)
    beacon.ending()
    if rank == 0:
        run_dir.write_json("summary.json", summary.as_json())
    if not summary.stopped_by:
        job.host.call_each(
            "moeframe_on_run_end",
            run_dir=run_dir.path,
            rank=rank,
            summary={**summary.metrics, "validation_loss": summary.validation_loss},
        )
    return summary


def _reported(run_dir: RunDirectory, world: World, error: BaseException) -> Failure:
    """Write the report of this rank, unless it has, and return it."""
    earlier = [failure for failure in read_failures(run_dir.log_dir) if failure.rank == world.rank]
    if earlier:
        return earlier[0]
    place = trace.current()
    logger.error("rank %d failed %s", world.rank, trace.told("at", place), exc_info=error)
    return write_failure(run_dir.log_dir, error, rank=world.rank, place=place)


def _recipe(run_dir: RunDirectory, resume_step: int) -> LoadedRecipe:
    """Return the recipe of a run; one that goes on has its weights in its checkpoint, and reads no others first."""
    loaded = load_recipe(run_dir.recipe_file)
    if not resume_step or loaded.recipe.model.init_from is None:
        return loaded
    unset = {"model.init_from": None, "model.init_from_differs": ()}
    return with_overrides(loaded, unset, origin=f"resumed from step {resume_step}")


def _record(run_dir: RunDirectory, job: Job) -> None:
    """Write ranks.json and environment.json; collective."""
    own = RunDirectory.describe_rank(job.world)
    ranks = [own] * job.world.world_size
    if dist.is_initialized():
        dist.all_gather_object(ranks, own)
    if job.world.rank == 0:
        run_dir.write_json("ranks.json", ranks)
        device = str(job.meshes.device.type)
        run_dir.write_environment(
            job.world,
            device=device,
            plugins=_origins(job),
            launch=launch_identity(job.world),
            distributions=_distributions(job.composition),
        )


def _distributions(composition: Composition) -> list[str]:
    """Return what the job's backends need or take notice of, by the names of packages."""
    parts = (composition.dispatcher, composition.sharding, composition.schedule, composition.compute, composition.data)
    found: list[str] = []
    for part in parts:
        needs = part.offer.needs
        found += [need.distribution or need.name.partition(".")[0] for need in needs.modules]
        found += needs.notices
    return sorted(set(found))


def _origins(job: Job) -> list[str]:
    """Return where the loaded plugins come from, with versions."""
    return sorted({plugin.origin.installed for plugin in job.host.plugins if plugin.loaded})


def main(arguments: Sequence[str]) -> int:
    """Run one rank that `moeframe run` started, with the arguments RUN_DIR STEP [PLUGIN ...].

    Returns:
        The exit code. Errors are in the run directory; the launching process prints them.
    """
    path, step, *plugins = arguments
    try:
        with lasting_output():
            summary = work(RunDirectory(Path(path)), int(step), plugins)
    except MoeframeError as error:
        return error.exit_code
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  work has logged and written it
        return 1
    return 128 + summary.stopped_by if summary.stopped_by else 0
