"""The watchdog: looks at beacons from outside, since a stuck rank cannot report, and acts when one does not move."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from moeframe.protocols.stall import RankState, Stall
from moeframe.trace import told
from moeframe.watch.beacon import beacon_file, stack_file
from moeframe.watch.crash import read_crash
from moeframe.watch.judge import judge
from moeframe.watch.processes import Process, end, health, how_it_ended, machine
from moeframe.watch.record import BeaconError
from moeframe.watch.stall import StallDirectory, flush
from moeframe.watch.view import Raised, RankView, interrupted, read_view, read_views

__all__ = ["Limits", "Monitor", "SupersededError", "known_views"]

logger = logging.getLogger(__name__)

_GRACE_S: Final = 4.0
"""A rank that loses a peer gets this long to report and end by itself."""
_FLUSH_S: Final = 10.0
"""How often beacons are handed to the file system, for who reads them on another machine."""
_ENDS_S: Final = 0.05
"""How often to look whether a process has ended."""
_LEADER_S: Final = 60.0
"""How long a monitor that leads may take to gather what is known, and to judge."""
_STARTED_S: Final = 30.0
"""The beacons of a node appear together; one that is not there by then will not come once all others have gone."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long a rank may stand still, seconds.

    `min_s` or `median_steps` median steps, whichever is longer; `first_step_s` while any rank starts, is in its first
    step, compiles or has done its last step; `save_s` while any rank saves.
    """

    min_s: float
    median_steps: float
    first_step_s: float
    save_s: float

    def of(self, views: Sequence[RankView], *, world_size: int) -> float:
        """Return the limit for a job whose ranks look like this."""
        steps = self.median_steps * max((view.moment.median_step_s for view in views), default=0.0)
        limit = max(self.min_s, steps)
        training = [view for view in views if view.state != "finished"]
        if len(views) < world_size or any(
            view.moment.steps < 2 or view.moment.life in ("compiling", "ending") for view in training
        ):
            limit = max(limit, self.first_step_s)
        if any(view.moment.place.phase == "save" for view in training):
            limit = max(limit, self.save_s)
        return limit


class SupersededError(Exception):
    """Other processes have taken the place of those that are watched: a launcher has started the job again."""


class Monitor:
    """Watches the ranks of this node.

    Args:
        run_dir: of the job.
        ranks: of this node.
        world_size: ranks of the job.
        limits: how long a rank may stand still.
        stop: end the job at a verdict; else report it once and go on.
        judges_deaths: also act when a rank dies or fails; else who started the ranks does, and calls `ended` and
            `conclude`.
        raised: reads what ranks have reported.
        tell: called once with each verdict that this monitor reaches and its lines for people, after it was written.
        go_on: says where a job that has ended can go on from.
        launcher: the process that started the ranks, whose end is theirs; None where that is this one.
    """

    def __init__(  # noqa: PLR0913  by name, each given once
        self,
        run_dir: Path,
        *,
        ranks: Collection[int],
        world_size: int,
        limits: Limits,
        stop: bool,
        judges_deaths: bool,
        raised: Callable[[], list[Raised]],
        tell: Callable[[Stall, list[str]], None],
        go_on: Callable[[], str] = lambda: "",
        launcher: Process | None = None,
    ) -> None:
        self._run_dir = run_dir
        self._ranks = sorted(ranks)
        self._world_size = world_size
        self._limits = limits
        self._stop = stop
        self._judges_deaths = judges_deaths
        self._raised = raised
        self._tell = tell
        self._go_on = go_on
        self._launcher = launcher
        self._codes: dict[int, int] = {}
        self._ended_first: Literal["", "rank", "launcher"] = ""
        self._stall = StallDirectory(run_dir=run_dir)
        self._processes: dict[int, Process] = {}
        self._moved: dict[int, tuple[int, float]] = {}
        self._began = time.monotonic()
        self._awaited_since = self._began
        self._flushed = self._began
        self._lost_at: float | None = None
        self._gave = False
        self._leads = False
        self._led_since: float | None = None
        self._still: int | None = None
        self._reported: dict[int, int] | None = None

    def know(self, processes: Mapping[int, Process]) -> None:
        """Hear which process each rank of this node is, before it has a beacon."""
        self._processes.update(processes)

    @property
    def every_s(self) -> float:
        """How often to poll."""
        return min(1.0, max(0.1, self._limits.min_s / 5))

    def local_views(self) -> list[RankView]:
        """Return the ranks of this node that have a beacon, with how their processes do.

        Raises:
            SupersededError: a rank has another process than before.
        """
        views = []
        for rank in self._ranks:
            try:
                view = read_view(beacon_file(self._run_dir, rank), now=time.time())
            except BeaconError:  # not yet there
                continue
            process = (view.pid, view.start_ticks)
            if self._processes.setdefault(rank, process) != process:
                raise SupersededError
            views.append(replace(view, state=_state(view, health(view.pid, view.start_ticks))))
        return views

    def poll(self) -> bool:
        """Look once. Returns whether the job is to be ended now."""
        views = self.local_views()
        if time.monotonic() - self._flushed > _FLUSH_S:
            self._flushed = time.monotonic()
            for view in views:
                flush(beacon_file(self._run_dir, view.rank))
        if self._reported is not None:
            return self._watch_reported(views)
        if self._stall.asked or self._stall.judged:
            return self._join(views)
        self._gave, self._still = False, None
        if not self._stall.path.exists():
            self._led_since = None
        reason = self._reason(views)
        return False if reason is None else self._lead(reason)

    def over(self) -> bool:
        """Return whether no process of this node is left, of those that have started."""
        if any(health(*process) != "dead" for process in self._processes.values()):
            return False
        return len(self._processes) == len(self._ranks) or time.monotonic() - self._began > _STARTED_S

    def wait(self) -> None:
        """Wait until it is time to poll: shorter when a process ends, of which the first one counts."""
        until = time.monotonic() + self.every_s
        while time.monotonic() < until:
            time.sleep(_ENDS_S)
            if not self._ended_first and self._see_ends():
                return

    def _see_ends(self) -> bool:
        """Note what ends first. A launcher that is killed takes its ranks with it; else it ends well after a rank."""
        if self._launcher is not None and health(*self._launcher) == "dead":
            self._ended_first = "launcher"
        elif any(health(*process) == "dead" for process in self._processes.values()):
            self._ended_first = "rank"
        return bool(self._ended_first)

    def _launcher_end(self) -> str:
        """Return how the launcher has ended, in words, where that ended the ranks."""
        if self._launcher is None or self._ended_first != "launcher":
            return ""
        process = f"process {self._launcher[0]} on {socket.gethostname()}"
        return f"the launcher of the ranks ({process}) was killed or has crashed"

    def ended(self, rank: int, code: int) -> None:
        """Hear how a process ended by itself: its exit code, or a signal as a negative number."""
        self._codes[rank] = code

    def _reason(self, views: Sequence[RankView]) -> str | None:
        """Return why something is wrong with the ranks of this node; None: nothing is."""
        now = time.monotonic()
        known = {view.rank for view in views}
        lost = [view.rank for view in views if view.state in ("dead", "failed")]
        lost += [rank for rank, process in self._processes.items() if rank not in known and health(*process) == "dead"]
        if lost:
            return self._reason_of_lost(lost)
        limit = self._limits.of(views, world_size=len(self._ranks))
        for view in views:
            count, since = self._moved.get(view.rank, (-1, now))
            if count != view.moment.count:
                self._moved[view.rank] = (view.moment.count, now)
            elif now - since > (self._limits.first_step_s if view.state == "finished" else limit):
                if health(view.pid, view.start_ticks) == "dead":
                    continue  # it has ended as it should
                self._still = view.rank
                return f"rank {view.rank} has not moved for {now - since:.1f} s (limit {limit:.1f} s)"
        if len(views) < len(self._ranks) and now - self._awaited_since > self._limits.first_step_s:
            return f"only {len(views)} of {len(self._ranks)} ranks of this node have started"
        return None

    def _reason_of_lost(self, lost: Sequence[int]) -> str | None:
        left_early = any(self._codes.get(rank) == 0 for rank in lost)  # which looks well to who started it
        if not (self._judges_deaths or left_early) or interrupted(self._raised()):
            return None
        now = time.monotonic()
        self._lost_at = self._lost_at or now
        return f"ranks {lost} have gone" if now - self._lost_at > _GRACE_S or self.over() else None

    def _lead(self, reason: str) -> bool:
        if not self._stall.claim():
            return self._await_leader()
        self._leads = True
        self._stall.ask(reason)
        logger.info("%s", reason)
        self._give(self.local_views())
        return self._conclude()

    def _give(self, views: Sequence[RankView]) -> None:
        self._stall.give(views, {rank: health(*process) for rank, process in self._processes.items()})

    def _conclude(self) -> bool:
        ended_by = {rank: how_it_ended(code) for rank, code in self._codes.items()}
        views, _ = read_views(self._run_dir, now=time.time())
        silent = self._stall.wait_for([view.rank for view in views])
        views = known_views(self._run_dir, self._raised(), ended_by, silent=silent)
        if self._has_moved_on(views):
            self._stall.put_away()
            self._start_anew()
            return False
        began = time.time() - (time.monotonic() - self._began)
        stall = judge(
            views,
            world_size=self._world_size,
            began=began,
            go_on=self._go_on() if self._stop else "",  # else it does
            processes=self._stall.states(),
            ended_by=ended_by,
            launcher_end=self._launcher_end(),
        )
        lines = self._stall.judge_with(stall)
        self._reported = {view.rank: view.moment.count for view in views}
        self._tell(stall, lines)
        return self._stop

    def _join(self, views: Sequence[RankView]) -> bool:
        """Do the part of this node in what another monitor leads."""
        if not self._gave and not self._leads:
            self._gave = True
            with suppress(FileNotFoundError):  # the leader has put it away
                self._give(views)
        if not self._stall.judged:
            return self._await_leader()
        self._reported = {view.rank: view.moment.count for view in views}
        return self._stop

    def _await_leader(self) -> bool:
        """Wait for who leads, but not for ever: it may have been killed, or its node have gone."""
        now = time.monotonic()
        self._led_since = self._led_since or now
        if self._leads or now - self._led_since < _LEADER_S:
            return False
        logger.warning("no verdict has come for %.0f s: who led has gone, and this watchdog judges", _LEADER_S)
        self._leads = True
        if not self._gave:
            self._stall.ask("who led has gone")
            self._give(self.local_views())
        return self._conclude()

    def _has_moved_on(self, views: Sequence[RankView]) -> bool:
        """Whether the rank that stood still goes on, by the time that all is known: then nothing is wrong."""
        before = None if self._still is None else self._moved[self._still][0]
        for view in views:
            if view.rank == self._still and view.state == "running" and view.moment.count != before:
                logger.warning(
                    "rank %d, which had stood still, goes on %s: no verdict", view.rank, told("at", view.place)
                )
                return True
        return False

    def _start_anew(self) -> None:
        """Watch as before, after a stall that is over."""
        self._reported, self._gave, self._leads, self._lost_at, self._led_since = None, False, False, None, None
        self._moved.clear()
        self._awaited_since = time.monotonic()

    def _watch_reported(self, views: Sequence[RankView]) -> bool:
        """Under `report`, watch again once every rank that is there has moved on, or the first one has started."""
        assert self._reported is not None
        if self._stop:
            return True
        if views and all(
            view.moment.count != self._reported.get(view.rank) or view.state == "finished" for view in views
        ):
            if self._leads:
                self._stall.put_away()
            self._start_anew()
        return False

    def close(self) -> None:
        """Put a stall away that was only reported, and that the ranks of this node have got over: all have finished."""
        views = self.local_views()
        if (
            views
            and not self._stop
            and self._leads
            and self._reported is not None
            and all(view.state == "finished" for view in views)
        ):
            self._stall.put_away()

    def conclude(self) -> None:
        """Judge a job of this node that has ended badly, if nobody has."""
        views = self.local_views()
        if len(views) == len(self._ranks) and all(view.state == "finished" for view in views):
            return  # a signal has ended it, after saving
        if self._reported is not None and not self._stop:
            self._stall.put_away()
        if not self._stall.judged and self._stall.claim():
            self._give(views)
            self._conclude()

    def end_ranks(self) -> None:
        """Kill what lives of the ranks of this node, stopped ones too."""
        for process in self._processes.values():
            end(*process)


def _state(view: RankView, found: str) -> RankState:
    if view.state in ("finished", "failed"):
        return view.state
    states: dict[str, RankState] = {"alive": "running", "stopped": "stopped", "dead": "dead"}
    return states.get(found, "unknown")


def known_views(
    run_dir: Path, raised: Sequence[Raised], ended_by: Mapping[int, str], *, silent: Collection[int] = ()
) -> list[RankView]:
    """Return all ranks with everything that is known of them on this machine.

    Args:
        run_dir: of the job.
        raised: what ranks have reported.
        ended_by: how processes ended, by rank, where that is known.
        silent: ranks whose watchdog gives no sign; they count as dead.
    """
    views, _ = read_views(run_dir, now=time.time())
    states = StallDirectory(run_dir=run_dir).states()
    reports = {report.rank: report for report in raised}
    own = machine()
    found = []
    for view in views:
        here = health(view.pid, view.start_ticks) if view.machine == own else "unknown"
        asked = states.get(view.rank, here)
        if view.rank in silent:
            asked = "dead"
        found.append(
            replace(
                view,
                state=_state(view, asked),
                raised=reports.get(view.rank),
                ended_by=ended_by.get(view.rank, ""),
                crash=read_crash(stack_file(run_dir, view.rank)),
            )
        )
    return found
