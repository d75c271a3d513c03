"""Which run directory a job writes to, and from which step it goes on. Importable without torch."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from moeframe.config.load import dump_recipe, load_recipe
from moeframe.config.schema import Recipe
from moeframe.errors import UserInputError
from moeframe.launch.environment import World
from moeframe.train.run_directory import RunDirectory, cannot_write, why_no_run
from moeframe.train.saved import COMPLETE, FREE_IN_MODEL, complete_steps, read_description
from moeframe.watch.files import write_whole
from moeframe.watch.processes import Health, health, machine, start_ticks
from moeframe.watch.stall import StallDirectory, read_json

__all__ = ["LATEST", "Holder", "Opened", "holder", "locked", "open_run", "prepare"]

LATEST = "latest"

_FIXED = ("model", "data", "train.seed", "train.seq_len", "train.global_batch_size", "train.precision")
"""What must not change in a resumed run: it decides what the weights mean and which data comes next."""


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Where a job writes, and after how many steps it goes on (0: from the start)."""

    run_dir: RunDirectory
    step: int


def open_run(recipe: Recipe, resume: str | None, world: World) -> Opened:
    """Make a new run directory, or find the one to go on in; nothing in a used one is changed.

    Args:
        recipe: of this start.
        resume: a run directory, `LATEST` for the newest of this recipe's name with a whole checkpoint, None for a new
            run. A restart by torchrun or a requeue by Slurm finds its own directory by itself.
        world: this process.

    Raises:
        UserInputError: there is no such run, it has no whole checkpoint, it is finished, or it trained something else.
        JobFailedError: its last checkpoint is broken, as far as that shows without torch.
    """
    output_dir = Path(recipe.train.output_dir)
    if resume is None:
        restarted = _same_launch(output_dir / recipe.name, world)
        if restarted is None:
            return Opened(run_dir=RunDirectory.create(output_dir, recipe.name), step=0)
        steps = complete_steps(restarted.checkpoints)
        return Opened(run_dir=restarted, step=steps[-1] if steps else 0)
    run_dir = _named(recipe, output_dir, resume)
    steps = complete_steps(run_dir.checkpoints)
    if not steps:
        raise UserInputError(
            f"--resume {resume}: {run_dir.path} holds no whole checkpoint (a checkpoints/step-<n> with its COMPLETE "
            f"file). Start a new run without --resume; checkpoint.every=N saves one every N steps."
        )
    _require_same_job(recipe, run_dir)
    read_description(run_dir.checkpoints, steps[-1])
    if steps[-1] >= recipe.train.steps:
        raise UserInputError(
            f"--resume {resume}: {run_dir.path} has a checkpoint of step {steps[-1]}, and train.steps is "
            f"{recipe.train.steps}: nothing is left to do. Go on with a larger train.steps=N."
        )
    return Opened(run_dir=run_dir, step=steps[-1])


def prepare(run_dir: RunDirectory, recipe: Recipe, plugins: Sequence[str]) -> None:
    """Write the recipe of this start and its plugins that are not installed; remove what an earlier start has left.

    That is reports, beacons and half checkpoints. A verdict of an earlier one stays as `stall-<n>/`.

    Only whoever holds the directory may do this (`locked`): half a checkpoint may be one that a running job writes.

    Raises:
        UserInputError: the directory cannot be written.
        JobFailedError: the disk is full.
    """
    try:
        for half in run_dir.checkpoints.glob("step-*"):
            if not (half / COMPLETE).is_file():
                shutil.rmtree(half)
        write_whole(run_dir.recipe_file, dump_recipe(recipe))
        run_dir.write_json(run_dir.launch_file.name, {"plugins": list(plugins)})
        words = [run_dir.path / "summary.json", run_dir.ended_file, *run_dir.log_dir.glob("failure-rank-*")]
        for stale in [*words, *(run_dir.path / "beacons").glob("*")]:
            stale.unlink(missing_ok=True)
        StallDirectory(run_dir=run_dir.path).put_away()
    except OSError as error:
        raise cannot_write(f"the run directory {run_dir.path} cannot be written", error) from error


def _named(recipe: Recipe, output_dir: Path, resume: str) -> RunDirectory:
    if resume != LATEST:
        path = Path(resume)
        if why := why_no_run(path):
            raise UserInputError(
                f"--resume {resume}: that is no run directory ({why}). Name one, such as "
                f"{output_dir / recipe.name}/<time>-<id>, or use --resume latest."
            )
        return RunDirectory(path)
    found = [path.parent for path in (output_dir / recipe.name).glob("*/recipe.yaml")]
    whole = [path for path in found if complete_steps(path / "checkpoints")]
    if not whole:
        trained = [path for path in found if _has_trained(path)]
        count = f"none of the {len(trained)} runs" if trained else "no run"
        raise UserInputError(
            f"--resume latest: {count} in {output_dir / recipe.name} has a whole checkpoint. Start without --resume, "
            f"or name a run directory (train.output_dir and the recipe's name decide where latest looks)."
        )
    return RunDirectory(max(whole, key=lambda path: path.name))


def _has_trained(path: Path) -> bool:
    """Return whether a run has finished a step; one that was refused before leaves its directory behind."""
    metrics = RunDirectory(path).metrics_file
    return metrics.is_file() and metrics.stat().st_size > 0


def _same_launch(runs: Path, world: World) -> RunDirectory | None:
    """Return the directory of an earlier start of this very job, None if this is its first."""
    launch = launch_identity(world)
    if launch is None:
        return None
    for path in sorted(runs.glob("*/environment.json"), reverse=True):
        if json.loads(path.read_text(encoding="utf-8")).get("launch") == launch:
            return RunDirectory(path.parent)
    return None


def launch_identity(world: World) -> dict[str, Any] | None:
    """Return what all restarts of one job share; None where nothing restarts a job by itself.

    torchrun calls a run "none" when nobody names it: then its own process tells runs apart.
    """
    if world.launcher == "slurm":
        return {"slurm_job": world.run_id}
    if world.launcher != "torchrun" or not world.run_id:
        return None
    if world.run_id != "none":
        return {"torchelastic_run": world.run_id}
    return {"torchelastic_agent": os.getppid(), "host": socket.gethostname()}


def _require_same_job(recipe: Recipe, run_dir: RunDirectory) -> None:
    """Refuse to go on with other data or another model; layout, schedule, backends and length may change."""
    saved = load_recipe(run_dir.recipe_file).recipe
    mine, theirs = asdict(recipe), asdict(saved)
    different = []
    for path in _FIXED:
        section, _, key = path.partition(".")
        pairs = {path: (mine[section][key], theirs[section][key])} if key else _fields(section, mine, theirs)
        different += [f"{name}: {new!r} now, {old!r} then" for name, (new, old) in pairs.items() if new != old]
    if different:
        raise UserInputError(
            f"--resume {run_dir.path}: that run trained something else. {'; '.join(different)}. Resume with the same "
            f"values (its own recipe is {run_dir.recipe_file}), or start a new run."
        )


def _fields(section: str, mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    free = FREE_IN_MODEL if section == "model" else frozenset()
    return {
        f"{section}.{key}": (value, theirs[section][key]) for key, value in mine[section].items() if key not in free
    }


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that holds a run directory. `launches`: it has started the ranks, and is none itself."""

    pid: int
    start_ticks: int
    host: str
    machine: str
    launches: bool

    def __str__(self) -> str:
        """Return it in words."""
        return f"process {self.pid} on {self.host}"

    @property
    def health(self) -> Health:
        """How it does; unknown on another machine, and after this one was started again."""
        return health(self.pid, self.start_ticks) if self.machine == machine() else "unknown"


def holder(run_dir: RunDirectory) -> Holder | None:
    """Return who holds a run directory, or was ended while it did; None where nobody does."""
    found = read_json(run_dir.path / "lock")
    try:
        return Holder(**found)
    except TypeError:  # none, or of another version
        return None


@contextmanager
def locked(run_dir: RunDirectory, *, launches: bool = False) -> Iterator[None]:
    """Hold the run directory for this job; `launches`: this process starts its ranks.

    Raises:
        UserInputError: another job holds it, or it cannot be written.
        JobFailedError: the disk is full.
    """
    try:
        file = _hold(run_dir, launches=launches)
    except OSError as error:
        raise cannot_write(f"the run directory {run_dir.path} cannot be written", error) from error
    with file:
        try:
            yield
        finally:
            file.truncate(0)  # which a full disk allows, too


def _hold(run_dir: RunDirectory, *, launches: bool) -> TextIO:
    """Return the open file that is the lock."""
    own = Holder(
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()),
        host=socket.gethostname(),
        machine=machine(),
        launches=launches,
    )
    with ExitStack() as stack:
        file = stack.enter_context((run_dir.path / "lock").open("a+", encoding="utf-8"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserInputError(
                f"another job is writing to {run_dir.path} ({holder(run_dir) or 'unknown process'}). "
                f"Wait for it or end it, or start a new run without --resume."
            ) from error
        file.truncate(0)
        file.write(json.dumps(asdict(own)) + "\n")
        file.flush()
        stack.pop_all()
        return file
