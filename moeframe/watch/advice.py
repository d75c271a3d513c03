"""What to do about a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moeframe.protocols.stall import StallKind
from moeframe.watch.view import RankView

__all__ = ["ADVICE", "DIED_EARLY", "NOT_STARTED", "OVER", "advice_on"]

ADVICE: Final[dict[StallKind, str]] = {
    "launcher_died": (
        "Find out who ended it: a person, a scheduler, a container, or the kernel's out-of-memory killer (dmesg)."
    ),
    "rank_died": "The end of the rank's log says what it did last; a full disk keeps its report from being written.",
    "rank_stopped": "Find out who stopped it (a debugger, a frozen container).",
    "rank_raised": "Repair the error; the traceback is in the rank's log.",
    "data_ended": "Give every rank the same number of sequences, use data.repeat=true or fewer train.steps.",
    "collective_order": (
        "All ranks of a group must call the same collectives in the same order; debug.ledger=true names the lines."
    ),
    "collective_arguments": (
        "All ranks must give one shape and dtype, and splits that meet; debug.ledger=true names the lines before data "
        "moves."
    ),
    "rank_absent": (
        "The rank's stack in stall/ shows the line; common are slow data, an endless loop, and a branch that only some "
        "ranks take."
    ),
    "backend_stuck": (
        "The dispatcher's own kernel waits for a peer; one that is not fused shows whether the job runs without it."
    ),
    "collective_stuck": "Look at the network and at NCCL's own report in stall/; every rank has done its part.",
    "all_idle": "The stacks in stall/ show where each waits: a lock, a queue, or an event that nobody records.",
}

_KILLED: Final = "SIGKILL: look for the kernel's out-of-memory killer (dmesg), a scheduler or a person."
_ABORTED: Final = "SIGABRT: gloo ends a process whose peer sends more than it expects; debug.ledger=true names both."

OVER: Final = (
    "All that training writes is written. A thread that is no daemon, or a handler at exit, keeps the process: look "
    "for them in the plugins."
)
_CRASHED: Final = "The stacks of all its threads at the crash are in stall/rank-<n>.stack."

_KERNEL: Final = (
    "CUDA_LAUNCH_BLOCKING=1 has the host wait for each kernel, so that the stack in stall/ shows which it is; another "
    "backend for that phase shows whether the job runs without it."
)

_NOT_FUSED: Final = (
    "The rank's stack in stall/ shows the line of the dispatcher: an endless loop, a lock, or a wait outside of torch."
)

DIED_EARLY: Final = (
    "The end of log/rank-<n>.out (for rank 0, of the terminal) says what it did last. SIGKILL comes from the kernel's "
    "out-of-memory killer (dmesg), a scheduler or a person."
)
NOT_STARTED: Final = (
    "Their logs in log/ end with what they did last; common are a process that is stopped, a slow file system under "
    "the imports, and a node whose launcher did not start. watchdog.first_step_s is how long they may take."
)


def advice_on(kind: StallKind, guilty: Sequence[RankView]) -> str:
    """Return what to do about a verdict on these ranks, which have all started."""
    if kind == "rank_died":
        return " ".join(_of_deaths(guilty))
    if kind == "rank_stopped":
        again = f"`kill -CONT {' '.join(str(view.pid) for view in guilty)}` lets it run again while the job lives."
        return f"{again} {ADVICE[kind]}"
    if kind == "all_idle" and all(view.state == "finished" for view in guilty):
        return OVER
    if kind == "backend_stuck" and not guilty[0].exchanging:
        return _KERNEL
    if kind == "backend_stuck" and not guilty[0].fused:
        return _NOT_FUSED
    return ADVICE[kind]


def _of_deaths(dead: Sequence[RankView]) -> list[str]:
    """Return what to do about ranks that died, by how they did; where nobody saw it, both may be."""
    if any(view.crash for view in dead):
        return [_CRASHED]
    unseen = any(not view.ended_by and view.state == "dead" for view in dead)
    of_signals = {"SIGKILL": _KILLED} if dead[0].gpu else {"SIGKILL": _KILLED, "SIGABRT": _ABORTED}  # of gloo
    found = [advice for name, advice in of_signals.items() if unseen or any(name in view.how_it_ended for view in dead)]
    return found or [ADVICE["rank_died"]]
