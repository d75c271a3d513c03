"""Start a job: its own local processes, or this process as one rank of torchrun or Slurm.

Importable without torch: when local processes do the work, the launching process needs none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from moeframe.config.compose import Composition
from moeframe.config.misfit import counted
from moeframe.config.schema import Recipe
from moeframe.errors import JobFailedError, MoeframeError, TopologyError, UserInputError
from moeframe.hooks.needs import why_no_cuda
from moeframe.launch.environment import World, detect
from moeframe.launch.local import Outcome, die_with_parent, run_local
from moeframe.trace import told
from moeframe.train.curves import try_to_draw
from moeframe.train.failure import read_failures
from moeframe.train.progress import duration, left_out
from moeframe.train.resume import Opened, locked, open_run, prepare
from moeframe.train.run_directory import RunDirectory
from moeframe.train.saved import complete_steps
from moeframe.train.watchdog import monitor, start_beside
from moeframe.watch.processes import Process, how_it_ended, start_ticks
from moeframe.watch.stall import StallDirectory, read_json
from moeframe.watch.table import verdict_text

__all__ = ["start"]

T = TypeVar("T")


def start(composition: Composition, plugins: Sequence[str], resume: str | None = None) -> int:
    """Run a checked recipe to its end and return the exit code of the command.

    Args:
        composition: of the recipe.
        plugins: modules of plugins that are not installed.
        resume: as in `moeframe.train.resume.open_run`.

    Raises:
        UserInputError: the run directory cannot be made, found or held, or the recipe spans nodes and nothing started
            its processes, or it demands CUDA and this machine has none.
        JobFailedError: the job failed; under torchrun or Slurm, where this process is a rank.
    """
    world = detect()
    recipe = composition.recipe
    if world.launcher != "none":
        return _join(composition, world, plugins, resume)
    if recipe.launch.nnodes > 1:
        raise TopologyError(
            f"launch.nnodes = {recipe.launch.nnodes}: one command cannot start processes on other nodes. Start "
            f"`moeframe run` on every node with torchrun or srun, or use launch.nnodes=1."
        )
    missing = why_no_cuda() if recipe.launch.device == "cuda" else None
    if missing is not None:
        raise UserInputError(f"launch.device is 'cuda', but {missing} Or use launch.device=cpu.")
    opened = open_run(recipe, resume, world)
    run_dir = opened.run_dir
    with locked(run_dir, launches=True):
        prepare(run_dir, recipe, plugins)
        print(headline(composition, opened))
        command = [sys.executable, "-m", "moeframe.train.rank", str(run_dir.path), str(opened.step), *plugins]
        outcome = _watched(command, recipe, run_dir, plugins)
    return report(run_dir, outcome)


def _watched(command: Sequence[str], recipe: Recipe, run_dir: RunDirectory, plugins: Sequence[str]) -> Outcome:
    """Run the local processes under the watchdog; a job that ends badly gets its verdict."""
    number = recipe.launch.nproc_per_node
    if not recipe.watchdog.enabled:
        return run_local(command, number, run_dir.log_dir)
    watch = monitor(run_dir, recipe, plugins, ranks=range(number), world_size=number, judges_deaths=False)

    def look() -> bool:
        try:
            return watch.poll()
        except OSError as error:  # something is wrong, and the disk may be what it is
            _tell_unwritten(run_dir, error)
            return True

    def started(pids: Sequence[int]) -> None:
        watch.know({rank: (pid, start_ticks(pid)) for rank, pid in enumerate(pids)})

    outcome = run_local(
        command,
        number,
        run_dir.log_dir,
        started=started,
        ended=watch.ended,
        watch=look,
        watch_every_s=watch.every_s,
    )
    badly = outcome.first_failed is not None or not (run_dir.path / "summary.json").exists()
    refused = any(failure.exit_code == UserInputError.exit_code for failure in read_failures(run_dir.log_dir))
    try:
        if badly and not outcome.received and not refused:
            watch.conclude()
        watch.close()
    except OSError as error:
        _tell_unwritten(run_dir, error)
    return outcome


def _tell_unwritten(run_dir: RunDirectory, error: OSError) -> None:
    print(f"the verdict cannot be written to {run_dir.path}: {error.strerror}", file=sys.stderr)


def headline(composition: Composition, opened: Opened) -> str:
    """Return what is about to run: layout, backends, batch, and where it writes."""
    recipe, degrees = composition.recipe, composition.degrees
    processes = "1 process" if degrees.world == 1 else f"{degrees.world} processes"
    axes = {name: getattr(degrees, name) for name in ("pp", "dp_replicate", "dp_shard", "ep")}
    layout = ", ".join(f"{name} {size}" for name, size in axes.items() if size > 1)
    parts = {kind: getattr(composition, kind).offer.name for kind in ("dispatcher", "sharding", "schedule", "compute")}
    batches = f"{counted(composition.num_micro_batches, 'micro-batch')} of {recipe.train.micro_batch_size} a rank"
    resumed = f", from the checkpoint of step {opened.step}" if opened.step else ""
    return "\n".join(
        [
            f"{recipe.name}: {processes}{f' ({layout})' if layout else ''} on {_device(recipe)}",
            "  " + ", ".join(f"{kind} {name}" for kind, name in parts.items()),
            f"  {recipe.train.precision}, {recipe.train.steps} steps of {composition.tokens_per_step:,} tokens "
            f"({batches}) of {recipe.data.name}",
            f"run directory: {opened.run_dir.path}{resumed}",
        ]
    )


def _device(recipe: Recipe) -> str:
    """Return what the processes compute on, as far as that is known without torch."""
    if recipe.launch.device == "auto":
        return "cpu" if why_no_cuda() is not None else "cuda where each process has a GPU, else cpu"
    return recipe.launch.device


def report(run_dir: RunDirectory, outcome: Outcome) -> int:
    """Tell the user how the local processes ended, and return the exit code."""
    summary_file = run_dir.path / "summary.json"
    if summary_file.exists():
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        code = 128 + int(summary["stopped_by"]) if summary["stopped_by"] else 0
        if set(outcome.codes) == {code}:
            print(closing_words(run_dir, summary, try_to_draw(run_dir)))
            return code
    failures = read_failures(run_dir.log_dir)
    verdict = StallDirectory(run_dir=run_dir.path).verdict()
    own = [failure for failure in failures[:1] if not failure.secondhand]
    if verdict is not None and not (own and verdict["kind"] in ("rank_raised", "data_ended")):
        error = [failure.full for failure in own]
        print("\n".join([*error, verdict_text(verdict), f"logs: {run_dir.log_dir}"]), file=sys.stderr)
        return 1
    if own:
        print(f"{own[0].full}\nlogs: {run_dir.log_dir}", file=sys.stderr)
        return own[0].exit_code
    if outcome.received:
        with suppress(OSError):  # a full disk; the terminal is told
            run_dir.write_json(run_dir.ended_file.name, {"stopped_by": outcome.received})
        name = signal.Signals(outcome.received).name
        print(f"ended by {name} {_how_far(run_dir)}.\nlogs: {run_dir.log_dir}", file=sys.stderr)
        return 128 + outcome.received
    reported = {failure.rank for failure in failures}
    rank = outcome.first_failed or 0
    if rank in reported or outcome.first_failed is None:  # another one has left early, as if all was well
        rank = next((other for other in range(len(outcome.codes)) if other not in reported), rank)
    how = how_it_ended(outcome.codes[rank])
    place = f"; another rank lost it {told('at', failures[0].place)}" if failures else ""
    print(f"rank {rank} {how} without a report of its own{place}.\nlogs: {run_dir.log_dir}", file=sys.stderr)
    return 1


def _how_far(run_dir: RunDirectory) -> str:
    """Return where a signal ended the ranks of a run that did not end by themselves, and how to go on."""
    summary = read_json(run_dir.path / "summary.json")  # written when training is over, before its processes end
    if isinstance(summary, dict) and not summary["stopped_by"]:
        return f"after the last step: all {summary['steps_done']} steps are done, and no curves are drawn"
    steps = complete_steps(run_dir.checkpoints)
    if not steps:
        return f"before a step boundary: no checkpoint is whole; start anew with {run_dir.start_command}"
    last = f"the last whole checkpoint is step {steps[-1]}"
    return f"before a step boundary: {last}; go on with {run_dir.resume_command}"


def closing_words(run_dir: RunDirectory, summary: dict[str, Any], curves: str) -> str:
    """Return the summary that a person reads last: results, where they lie, what to try next.

    `curves` says where the picture is, or why there is none.
    """
    metrics = summary["metrics"]
    if summary["stopped_by"]:
        name = signal.Signals(summary["stopped_by"]).name
        lines = [f"stopped by {name} after {summary['steps_done']} steps in {duration(summary['seconds'])}"]
    else:
        lines = [f"done: {summary['steps_done']} steps in {duration(summary['seconds'])}"]
    if metrics:
        lines.append(f"  {_results(metrics, summary['validation_loss'])}")
    lines += [f"  {one['kind']}: {one['used']} in place of {one['wanted']}" for one in summary["substitutions"]]
    lines += [
        f"  curves:  {curves}",
        f"  metrics: {run_dir.metrics_file}",
        f"  recipe:  {run_dir.recipe_file}",
        f"  logs:    {run_dir.log_dir}",
    ]
    if summary["stopped_by"]:
        lines.append(f"next: go on with {run_dir.resume_command}.")
    else:
        lines += [
            "next: append key=value to change anything, such as dispatcher.name=allgather or sharding.name=replicate;",
            "      `moeframe explain RECIPE` shows every key and its origin, `moeframe plugins` every backend.",
        ]
    return "\n".join(lines)


def _results(metrics: Mapping[str, Any], held_out: float | None) -> str:
    """Return the numbers of the last step; one that was left out has no losses."""
    missing = left_out(metrics)
    losses = f"last step {missing}" if missing else f"loss {metrics['loss']:.3f}, ce_loss {metrics['ce_loss']:.3f}"
    validation = f", validation {held_out:.3f}" if held_out is not None else ""
    if held_out is None and "validation_loss" in metrics:
        validation = ", validation not finite"
    return f"{losses}{validation}, largest expert load {1 + metrics['max_violation']:.2f} x the mean"


def _join(composition: Composition, world: World, plugins: Sequence[str], resume: str | None) -> int:
    """Work as one rank of a job that a launcher started; rank 0 finds and holds the run directory, and talks."""
    from torch.distributed.elastic.multiprocessing.errors import record

    from moeframe.launch.group import TIMEOUT, choose_device, joined
    from moeframe.train.worker import work

    recipe = composition.recipe

    def rank() -> int:
        die_with_parent()
        start_s = recipe.watchdog.first_step_s if recipe.watchdog.enabled else TIMEOUT.total_seconds()
        with joined(world, choose_device(recipe.launch.device, world), start_s=start_s):
            processes = _processes(world)
            opened = _on_rank_0(world, lambda: open_run(recipe, resume, world))
            held = locked(opened.run_dir)
            _on_rank_0(world, held.__enter__)
            try:
                _on_rank_0(world, lambda: prepare(opened.run_dir, recipe, plugins))
                if world.rank == 0:
                    print(headline(composition, opened), flush=True)
                if recipe.watchdog.enabled and world.local_rank == 0:
                    start_beside(opened.run_dir, world, plugins, processes)
                summary = work(opened.run_dir, opened.step, plugins)
            finally:
                if world.rank == 0:
                    held.__exit__(None, None, None)
            # The others wait: a launcher that sees one of them end after a signal would end this one too.
            curves = _on_rank_0(world, lambda: try_to_draw(opened.run_dir))
            if world.rank == 0:
                print(closing_words(opened.run_dir, summary.as_json(), curves))
            return 128 + summary.stopped_by if summary.stopped_by else 0

    # torchrun prints what `record` writes as the root cause, with its traceback.
    code = record(rank)()
    assert code is not None
    return code


def _processes(world: World) -> list[Process]:
    """Return the process of every rank. Collective."""
    import torch.distributed as dist

    found: list[Any] = [None] * world.world_size
    dist.all_gather_object(found, (os.getpid(), start_ticks(os.getpid())))
    return found


def _on_rank_0(world: World, call: Callable[[], T]) -> T:
    """Call on rank 0 and give every rank its result, or raise its error on every rank."""
    import torch.distributed as dist

    answer: list[Any] = [None, None]
    if world.rank == 0:
        try:
            answer[0] = call()
        except MoeframeError as error:
            answer[1] = ("input" if isinstance(error, UserInputError) else "job", str(error))
        except Exception as error:  # noqa: BLE001  every rank must hear of it
            answer[1] = ("job", f"{type(error).__name__}: {error}")
    dist.broadcast_object_list(answer, src=0)
    result: T = answer[0]
    if answer[1] is not None:
        kind, message = answer[1]
        raise UserInputError(message) if kind == "input" else JobFailedError(message)
    return result
