"""Start a job: its own local processes, or this process as one rank of torchrun or Slurm.

Importable without torch: when local processes do the work, the launching process needs none.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeframe.config.compose import Composition
from moeframe.config.load import LoadedRecipe, dump_recipe
from moeframe.errors import TopologyError
from moeframe.launch.environment import World, detect
from moeframe.launch.local import Outcome, run_local
from moeframe.train.failure import Failure, read_failures
from moeframe.train.progress import duration
from moeframe.train.run_directory import RunDirectory

__all__ = ["start"]


def start(loaded: LoadedRecipe, composition: Composition, plugins: Sequence[str]) -> int:
    """Run a checked recipe to its end and return the exit code of the command.

    Raises:
        UserInputError: the run directory cannot be made, or the recipe spans nodes and nothing started its processes.
    """
    world = detect()
    if world.launcher != "none":
        return _join(loaded, world, plugins)
    recipe = loaded.recipe
    if recipe.launch.nnodes > 1:
        raise TopologyError(
            f"launch.nnodes = {recipe.launch.nnodes}: one command cannot start processes on other nodes. Start "
            f"`moeframe run` on every node with torchrun or srun, or use launch.nnodes=1."
        )
    run_dir = RunDirectory.create(Path(recipe.train.output_dir), recipe.name)
    run_dir.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
    print(headline(composition, run_dir))
    command = [sys.executable, "-m", "moeframe.train.worker", str(run_dir.path), *plugins]
    outcome = run_local(command, recipe.launch.nproc_per_node, run_dir.log_dir)
    return report(run_dir, outcome)


def headline(composition: Composition, run_dir: RunDirectory) -> str:
    """Return what is about to run, in two lines."""
    recipe, degrees = composition.recipe, composition.degrees
    return (
        f"{recipe.name}: {degrees.world} process(es), ep {degrees.ep}, data ranks {degrees.data_ranks}; "
        f"{recipe.dispatcher.name} + {recipe.sharding.name} + {recipe.schedule.name} + {recipe.compute.name}, "
        f"{recipe.train.precision}, {recipe.train.steps} steps on {recipe.data.name}\n"
        f"run directory: {run_dir.path}"
    )


def report(run_dir: RunDirectory, outcome: Outcome) -> int:
    """Tell the user how the run ended, and return the exit code."""
    summary_file = run_dir.path / "summary.json"
    if summary_file.exists() and all(code in (0, 128 + outcome.received) for code in outcome.codes):
        summary = json.loads(summary_file.read_text(encoding="utf-8"))
        print(closing_words(run_dir, summary))
        return 128 + summary["stopped_by"] if summary["stopped_by"] else 0
    if outcome.received and outcome.first_failed is not None:
        name = signal.Signals(outcome.received).name
        print(f"ended by {name}; logs: {run_dir.log_dir}", file=sys.stderr)
        return 128 + outcome.received
    failures = read_failures(run_dir.log_dir)
    if failures:
        return _report_failure(failures[0], run_dir)
    rank = outcome.first_failed
    assert rank is not None
    code = outcome.codes[rank]
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    print(f"error: rank {rank} {how} without a report; see {run_dir.log_dir}", file=sys.stderr)
    return 1


def _report_failure(root: Failure, run_dir: RunDirectory) -> int:
    if root.exit_code != 2:  # the traceback of a refused input helps nobody
        print(root.traceback, file=sys.stderr, end="")
    print(f"error: {root}\nlogs: {run_dir.log_dir}", file=sys.stderr)
    return root.exit_code


def closing_words(run_dir: RunDirectory, summary: dict[str, Any]) -> str:
    """Return the summary that a person reads last: results, where they lie, what to try next."""
    metrics = summary["metrics"]
    lines = []
    if summary["stopped_by"]:
        name = signal.Signals(summary["stopped_by"]).name
        lines.append(f"stopped by {name} after {summary['steps_done']} steps in {duration(summary['seconds'])}")
    else:
        lines.append(f"done: {summary['steps_done']} steps in {duration(summary['seconds'])}")
    if metrics:
        lines.append(
            f"  loss {metrics['loss']:.3f}, ce_loss {metrics['ce_loss']:.3f}"
            + (f", validation {summary['validation_loss']:.3f}" if summary["validation_loss"] is not None else "")
            + f", largest expert load {1 + metrics['max_violation']:.2f} x the mean"
        )
    lines += [
        f"  metrics: {run_dir.metrics_file}",
        f"  recipe:  {run_dir.recipe_file}",
        f"  logs:    {run_dir.log_dir}",
        "next: append key=value to change anything, for example dispatcher.name=allgather or sharding.name=replicate;",
        "      `moeframe explain RECIPE` shows every key and where its value came from, `moeframe plugins` every backend.",
    ]
    return "\n".join(lines)


def _join(loaded: LoadedRecipe, world: World, plugins: Sequence[str]) -> int:
    """Work as one rank of a job that a launcher started; rank 0 makes the run directory."""
    import torch.distributed as dist

    from moeframe.launch.group import choose_device, joined
    from moeframe.train.worker import work

    recipe = loaded.recipe
    with joined(world, choose_device(recipe.launch.device, world)):
        chosen: list[str | Exception] = [""]
        if world.rank == 0:
            try:
                run_dir = RunDirectory.create(Path(recipe.train.output_dir), recipe.name)
                run_dir.recipe_file.write_text(dump_recipe(recipe), encoding="utf-8")
                chosen[0] = str(run_dir.path)
            except Exception as error:  # noqa: BLE001  every rank must hear of it
                chosen[0] = error
        dist.broadcast_object_list(chosen, src=0)
        if isinstance(chosen[0], Exception):
            raise chosen[0]
        run_dir = RunDirectory(Path(chosen[0]))
        summary = work(run_dir, plugins)
    if world.rank == 0:
        print(closing_words(run_dir, summary.as_json()))
    return 128 + summary.stopped_by if summary.stopped_by else 0
