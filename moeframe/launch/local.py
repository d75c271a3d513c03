"""Run the processes of a job on this machine, and end all of them when one fails. Importable without torch."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from moeframe.launch.environment import process_environment
from moeframe.launch.signals import ending_signals

__all__ = ["Outcome", "die_with_parent", "run_local"]

GRACE_S = 3.0
"""After a failure the other ranks get this long to write their own report, then SIGKILL."""

SAME_SIGNAL_S = 1.0
"""A signal that comes again within this time is the same one: whoever signals a whole group delivers it twice."""

_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the processes ended.

    `codes` are exit codes by rank, negative for a signal. `first_failed` is the rank that ended badly first, None when
    all ended with 0. `received` is the signal that this process got and passed on, 0 if none.
    """

    codes: tuple[int, ...]
    first_failed: int | None
    received: int


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, so that no rank is orphaned. Linux only."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _wait_for_all(
    processes: Sequence[subprocess.Popen[bytes]],
    grace_s: float,
    ended: Callable[[int, int], None],
    watch: Callable[[], bool],
    watch_every_s: float,
) -> int | None:
    """Wait until every process has ended, killing the rest after the first failure; return who failed first."""
    first_failed, failed_at = None, 0.0
    watched_at = time.monotonic()
    told: set[int] = set()
    ending = False
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code is not None and rank not in told and not ending:
                told.add(rank)
                ended(rank, code)
        if first_failed is None and any(codes):
            first_failed, failed_at = next(rank for rank, code in enumerate(codes) if code), time.monotonic()
        if None not in codes:
            return first_failed
        now = time.monotonic()
        ending = ending or (first_failed is not None and now - failed_at > grace_s)
        if not ending and now - watched_at > watch_every_s:
            ending = watch()
            watched_at = time.monotonic()
        if ending:
            for process in processes:
                process.kill()
        time.sleep(_POLL_S)


def run_local(
    command: Sequence[str],
    world_size: int,
    log_dir: Path,
    *,
    grace_s: float = GRACE_S,
    started: Callable[[Sequence[int]], None] = lambda _: None,
    ended: Callable[[int, int], None] = lambda _, __: None,
    watch: Callable[[], bool] = lambda: False,
    watch_every_s: float = 1.0,
) -> Outcome:
    """Start `world_size` copies of `command` and wait for them.

    Rank 0 shares this process's terminal; the others write to ``log_dir/rank-<n>.out``. SIGINT, SIGTERM and SIGHUP
    are passed on once; a second one, later than that, kills.

    Args:
        command: program and arguments, the same for every rank; the rank comes through the environment.
        world_size: number of processes.
        log_dir: existing directory.
        grace_s: seconds between the first failure and SIGKILL for the rest.
        started: called once with the pids of all ranks.
        ended: called once for each process that ends before the rest is killed, with its rank and exit code.
        watch: called every `watch_every_s` seconds; True kills every process, stopped ones too.
        watch_every_s: at least so many seconds between two calls.

    Returns:
        How they ended. Every process has ended when this returns.
    """
    received, received_at = 0, 0.0
    processes: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal received, received_at
        now = time.monotonic()
        if number == received and now - received_at < SAME_SIGNAL_S:
            return
        again, received, received_at = received != 0, number, now
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if again else number)

    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="moeframe-")))
        rendezvous = f"file://{meeting / 'rendezvous'}"
        for number in ending_signals():
            stack.callback(signal.signal, number, signal.signal(number, pass_on))
        for rank in range(world_size):
            own = process_environment(rank, world_size, rendezvous, cores=os.cpu_count() or 1)
            output = None if rank == 0 else stack.enter_context((log_dir / f"rank-{rank}.out").open("wb"))
            processes.append(
                subprocess.Popen(  # noqa: S603
                    list(command),
                    env={**os.environ, **own},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output is not None else None,
                    start_new_session=True,  # a Ctrl-C reaches this process only, which passes it on
                    preexec_fn=die_with_parent,  # noqa: PLW1509
                )
            )
        started([process.pid for process in processes])
        first_failed = _wait_for_all(processes, grace_s, ended, watch, watch_every_s)
        codes = tuple(process.wait() for process in processes)
    return Outcome(codes=codes, first_failed=first_failed, received=received)
