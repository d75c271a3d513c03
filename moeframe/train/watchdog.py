"""The watchdog of a job: in the process that started it, or beside local rank 0 under torchrun and Slurm. No torch.

Run as ``python -m moeframe.train.watchdog RUN_DIR WORLD_SIZE FIRST_RANK LAUNCHER PID:TICKS,... [PLUGIN ...]``, with
the launcher as PID:TICKS, too.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from moeframe.config.load import load_recipe
from moeframe.config.schema import Recipe, WatchdogConfig
from moeframe.errors import MoeframeError
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.environment import World
from moeframe.protocols.stall import Stall
from moeframe.trace import Place
from moeframe.train.failure import read_failures
from moeframe.train.run_directory import RunDirectory
from moeframe.train.saved import go_on
from moeframe.watch.monitor import Limits, Monitor, SupersededError
from moeframe.watch.processes import Process, how_it_ended, start_ticks
from moeframe.watch.stall import StallDirectory
from moeframe.watch.table import verdict_text
from moeframe.watch.view import Raised

__all__ = ["limits_of", "main", "monitor", "raised_in", "start_beside"]

logger = logging.getLogger(__name__)

_HOOK_S: Final = 30.0
"""How long plugins may take over a verdict while the job waits for its end."""
_STARTS: Final = 5
"""How often a watchdog that has ended is started again: it may be killed, or fail for a reason that stays."""


def limits_of(config: WatchdogConfig) -> Limits:
    """Return how long a rank may stand still."""
    return Limits(
        min_s=config.min_s,
        median_steps=config.median_steps,
        first_step_s=config.first_step_s,
        save_s=config.save_s,
    )


def raised_in(log_dir: Path, problems: list[str] | None = None) -> list[Raised]:
    """Return what ranks have reported of their failures; `problems` gets a line for each that cannot be read."""
    return [
        Raised(
            rank=failure.rank,
            error=failure.error,
            place=Place(
                step=failure.step,
                micro_batch=failure.micro_batch,
                layer=failure.layer,
                phase=failure.phase,
                direction=failure.direction,
            ),
            time=failure.time,
            secondhand=failure.secondhand,
        )
        for failure in read_failures(log_dir, problems)
    ]


def monitor(
    run_dir: RunDirectory,
    recipe: Recipe,
    plugins: Sequence[str],
    *,
    ranks: Collection[int],
    world_size: int,
    judges_deaths: bool,
    launcher: Process | None = None,
) -> Monitor:
    """Return the watchdog of some ranks; `judges_deaths`: also of a rank that dies, which nobody else notices.

    `launcher` is the process that started them, None where that is this one.
    """

    def tell(stall: Stall, lines: list[str]) -> None:
        if stall.kind != "rank_raised":  # which is told with its traceback
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            sys.stderr.flush()
            everyone = sorted({row.rank for row in stall.table} | set(stall.ranks))
            _end_logs(run_dir, everyone, verdict_text(stall))
        _tell_plugins(run_dir, recipe, plugins, stall)

    return Monitor(
        run_dir.path,
        ranks=ranks,
        world_size=world_size,
        limits=limits_of(recipe.watchdog),
        stop=recipe.watchdog.action == "stop",
        judges_deaths=judges_deaths,
        raised=lambda: raised_in(run_dir.log_dir),
        tell=tell,
        go_on=lambda: go_on(run_dir.checkpoints),
        launcher=launcher,
    )


def _tell_plugins(run_dir: RunDirectory, recipe: Recipe, plugins: Sequence[str], stall: Stall) -> None:
    """Call the hook of a verdict; a plugin that fails or takes long does not keep the job from its end."""

    def call() -> None:
        try:
            host = build_plugin_manager(plugins, wanted=recipe.backends)
            host.call_each("moeframe_on_stall", run_dir=run_dir.path, stall=stall)
        except MoeframeError:
            logger.exception("plugins are not told of the verdict")

    thread = threading.Thread(target=call, name="moeframe-on-stall", daemon=True)
    thread.start()
    thread.join(_HOOK_S)
    if thread.is_alive():
        logger.warning("moeframe_on_stall of a plugin takes more than %g s; the watchdog goes on without it", _HOOK_S)


def _end_logs(run_dir: RunDirectory, ranks: Collection[int], verdict: str) -> None:
    """Have the logs of ranks end with the cause, whatever a rank itself could say of lost connections."""
    when = datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    for rank in ranks:
        file = run_dir.log_dir / f"rank-{rank}.log"
        if file.exists() and file.read_text(encoding="utf-8", errors="replace").rstrip().endswith(verdict):
            continue
        with file.open("a", encoding="utf-8") as log:
            log.write(f"{when} watchdog of rank {rank}: {verdict}\n")


def _close(run_dir: RunDirectory, ranks: Collection[int]) -> None:
    """End the logs of this node's ranks, which have gone, with the verdict on the job, if there is one.

    Ranks that lost those of another node may have written after that verdict.
    """
    verdict = StallDirectory(run_dir=run_dir.path).verdict()
    if verdict is not None and verdict["kind"] != "rank_raised":
        _end_logs(run_dir, ranks, verdict_text(verdict))


def start_beside(run_dir: RunDirectory, world: World, plugins: Sequence[str], processes: Sequence[Process]) -> None:
    """Start the watchdog of this node, which outlives this rank and ends with the last rank of the node.

    One that is killed is started again, a few times, while this rank lives.

    Args:
        run_dir: of the job.
        world: this process among all.
        plugins: modules of plugins that are not installed.
        processes: of all ranks.
    """
    first = world.rank - world.local_rank
    local = processes[first : first + world.local_world_size]
    launcher = os.getppid(), start_ticks(os.getppid())
    numbers = [str(world.world_size), str(first), _text(launcher), ",".join(map(_text, local))]
    command = [sys.executable, "-m", "moeframe.train.watchdog", str(run_dir.path), *numbers, *plugins]

    def start() -> subprocess.Popen[bytes]:
        with (run_dir.log_dir / f"watchdog-{first}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                start_new_session=True,  # whoever kills this rank and its group leaves the watchdog alone
            )

    def keep(process: subprocess.Popen[bytes]) -> None:
        for _ in range(_STARTS):
            if (code := process.wait()) == 0:
                return
            logger.warning("the watchdog of this node %s; it is started again", how_it_ended(code))
            process = start()

    threading.Thread(target=keep, args=(start(),), name="moeframe-watchdog", daemon=True).start()


def _text(process: Process) -> str:
    pid, ticks = process
    return f"{pid}:{ticks}"


def _process(text: str) -> Process:
    pid, _, ticks = text.partition(":")
    return int(pid), int(ticks)


def main(arguments: Sequence[str]) -> int:
    """Watch the ranks of this node until none is left."""
    path, world_size, first, launcher, local, *plugins = arguments
    logging.basicConfig(format="%(asctime)s watchdog %(levelname)s: %(message)s", stream=sys.stdout, level=logging.INFO)
    run_dir = RunDirectory(Path(path))
    try:
        recipe = load_recipe(run_dir.recipe_file).recipe
    except MoeframeError:
        logger.exception("the recipe of the run cannot be read")
        return 1
    processes = {int(first) + number: _process(text) for number, text in enumerate(local.split(","))}
    watch = monitor(
        run_dir,
        recipe,
        plugins,
        ranks=processes,
        world_size=int(world_size),
        judges_deaths=True,
        launcher=_process(launcher),
    )
    watch.know(processes)
    try:
        while True:
            watch.wait()
            try:
                ending = watch.poll()
            except OSError:  # something is wrong with the ranks, and the disk may be what it is
                logger.exception("the verdict cannot be written: the ranks are ended without one")
                ending = True
            if ending:
                watch.end_ranks()
            if watch.over():
                watch.close()
                _close(run_dir, processes)
                return 0
    except SupersededError:  # a restart has a watchdog of its own
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
