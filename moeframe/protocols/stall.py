"""What is said of a job that stands still or has failed. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from moeframe.trace import Place

__all__ = ["RankState", "Stall", "StallKind", "StalledRank"]

RankState: TypeAlias = Literal["running", "stopped", "dead", "finished", "failed", "unknown"]

StallKind: TypeAlias = Literal[
    "launcher_died",
    "rank_died",
    "rank_stopped",
    "rank_raised",
    "data_ended",
    "collective_order",
    "collective_arguments",
    "rank_absent",
    "backend_stuck",
    "collective_stuck",
    "all_idle",
]
"""What went wrong.

launcher_died: the process that started the ranks has ended, which ends them. rank_died: a process ended without a word.
rank_stopped: a process is stopped (SIGSTOP, a debugger, a frozen container). rank_raised: a rank has failed with an
error. data_ended: a rank's data ended before those of the others. collective_order: ranks wait in different
collectives. collective_arguments: in one collective with other shapes, dtypes or splits. rank_absent: a rank does not
come to a collective that others wait in, or has not started. backend_stuck: a call of the dispatcher does not return,
and no collective is pending in it. collective_stuck: all ranks have come and it does not end. all_idle: no rank moves
and none waits in a collective.
"""


@dataclass(frozen=True, kw_only=True)
class StalledRank:
    """One rank as its beacon shows it.

    `place`: entered last, and left already unless `inside`. `finished`: the last phase that it left. `device`: the
    phase that its GPU has not finished, None on a CPU and where the GPU has nothing left to do; else `place` is the
    same. `still_s`: seconds since it last moved, at `since` (ISO 8601, UTC). `waits_in`: the collective that it has
    launched and that is not over, in words; "" if none is known.
    """

    rank: int
    host: str
    pid: int
    state: RankState
    place: Place
    inside: bool
    finished: Place
    device: Place | None
    still_s: float
    since: str
    waits_in: str


@dataclass(frozen=True, kw_only=True)
class Stall:
    """A verdict. `ranks` are those that the others wait for, or that failed first; the rest says where they are.

    `cause` is one sentence, `advice` what to do. `table` has every rank.
    """

    kind: StallKind
    ranks: tuple[int, ...]
    step: int
    micro_batch: int
    layer: int
    phase: str
    direction: str
    since: str
    cause: str
    advice: str
    table: Sequence[StalledRank]

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)
