"""The directory `stall/` of a run: who asks for evidence, what each host gives, and the verdict.

Monitors of several nodes meet here alone. Who makes the directory leads: it asks (`request.json`), waits a little for
what every host knows (`host-<name>-<first rank>.json`, stacks), judges, and writes `verdict.json`. All monitors then
act on it.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from moeframe.protocols.stall import Stall
from moeframe.watch.beacon import STACK_SIGNAL, beacon_file, flight_file, request_file, stack_file
from moeframe.watch.crash import crash_text
from moeframe.watch.files import write_whole
from moeframe.watch.processes import Health, health, py_spy, signal_to
from moeframe.watch.ras import ask_ras
from moeframe.watch.table import report_lines
from moeframe.watch.view import RankView

__all__ = ["StallDirectory", "flush", "read_json", "write_json"]

_STACKS_S: Final = 1.5
"""How long ranks get to write stacks and traces."""
_HOSTS_S: Final = 5.0
"""How long the leader waits for what other hosts know."""
_PY_SPY_S: Final = 5.0
_POLL_S: Final = 0.1


def write_json(file: Path, content: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a small file whole or not at all."""
    write_whole(file, json.dumps(content, indent=2) + "\n")


def flush(file: Path) -> None:
    """Hand what a process has written through a mapping to the file system, so that other machines see it."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(file: Path) -> Any:
    """Return the content of a JSON file, None where it is missing or half written."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


@dataclass(frozen=True, kw_only=True)
class StallDirectory:
    """`stall/` of a run directory."""

    run_dir: Path

    @property
    def path(self) -> Path:
        """The directory."""
        return self.run_dir / "stall"

    @property
    def verdict_file(self) -> Path:
        """The verdict."""
        return self.path / "verdict.json"

    def verdict(self) -> dict[str, Any] | None:
        """Read the verdict; None where there is none, or it is half written or of another version."""
        found = read_json(self.verdict_file)
        return found if isinstance(found, dict) and {"kind", "ranks", "cause"} <= set(found) else None

    def claim(self) -> bool:
        """Make the directory; False when another monitor has."""
        try:
            self.path.mkdir()
        except FileExistsError:
            return False
        return True

    def ask(self, reason: str) -> None:
        """Ask all monitors and ranks for what they know."""
        write_json(request_file(self.run_dir), {"host": socket.gethostname(), "reason": reason, "time": time.time()})

    @property
    def asked(self) -> bool:
        """Whether somebody has asked."""
        return request_file(self.run_dir).exists()

    @property
    def judged(self) -> bool:
        """Whether there is a verdict."""
        return self.verdict_file.exists()

    def give(self, views: Sequence[RankView], processes: Mapping[int, Health]) -> None:
        """Write what this host knows of its ranks: how their processes do, and their stacks.

        Args:
            views: the ranks that have started.
            processes: how the processes of ranks do, also of those that have not.
        """
        states: dict[str, Health] = {str(rank): found for rank, found in processes.items()}
        states |= {str(view.rank): health(view.pid, view.start_ticks) for view in views}
        alive = [view for view in views if states[str(view.rank)] == "alive"]
        asked = [view for view in alive if view.moment.life not in ("finished", "failed")]  # the others answer no more
        sizes = {}
        for view in views:
            file = stack_file(self.run_dir, view.rank)
            sizes[view.rank] = file.stat().st_size if file.exists() else 0
            if view in asked and file.exists():
                signal_to(view.pid, view.start_ticks, STACK_SIGNAL)
            flush(beacon_file(self.run_dir, view.rank))
        self._wait_for_ranks(asked, sizes)
        for view in views:
            text = self._stack(view, states[str(view.rank)], sizes[view.rank])
            (self.path / f"rank-{view.rank}.stack").write_text(text, encoding="utf-8")
        with ThreadPoolExecutor(max(1, len(alive))) as pool:  # together, so that the limit holds for all
            natives = pool.map(lambda view: py_spy(view.pid, _PY_SPY_S), alive)
        for view, native in zip(alive, natives, strict=True):
            if native:
                (self.path / f"rank-{view.rank}.py-spy").write_text(native, encoding="utf-8")
        # Two launchers may share a machine, and two machines a name.
        first = min(map(int, states), default=0)
        write_json(self.path / f"host-{socket.gethostname()}-{first}.json", states)

    def _wait_for_ranks(self, views: Sequence[RankView], sizes: Mapping[int, int]) -> None:
        """Wait until each has written its stack, and its flight-recorder trace if it has groups; not for long."""
        until = time.monotonic() + _STACKS_S
        while time.monotonic() < until and not all(self._has_written(view, sizes[view.rank]) for view in views):
            time.sleep(_POLL_S)

    def _has_written(self, view: RankView, before: int) -> bool:
        file = stack_file(self.run_dir, view.rank)
        traced = not view.groups or flight_file(self.run_dir, view.rank).exists()
        return traced and file.exists() and file.stat().st_size > before

    def _stack(self, view: RankView, state: str, before: int) -> str:
        if state != "alive":
            crashed = crash_text(stack_file(self.run_dir, view.rank))
            if crashed:
                return crashed
            return f"rank {view.rank} (process {view.pid}) is {state}: it has no stack to show\n"
        try:
            with stack_file(self.run_dir, view.rank).open("rb") as file:
                file.seek(before)
                text = file.read().decode(errors="replace")
        except OSError:  # it has only just made its beacon
            text = ""
        return text or f"rank {view.rank} (process {view.pid}) did not write its stack within {_STACKS_S:g} s\n"

    def wait_for(self, ranks: Collection[int]) -> list[int]:
        """Wait until the watchdogs of these ranks have given what they know; return the ranks of which none has."""
        until = time.monotonic() + _HOSTS_S
        while True:
            silent = sorted(set(ranks) - set(self.states()))
            if not silent or time.monotonic() > until:
                return silent
            time.sleep(_POLL_S)

    def states(self) -> dict[int, str]:
        """Return how the processes of ranks did when they were asked about."""
        found: dict[int, str] = {}
        for file in self.path.glob("host-*.json"):
            given = read_json(file)
            if isinstance(given, dict):  # else half written, or of another version
                found |= {int(rank): str(state) for rank, state in given.items() if rank.isdecimal()}
        return found

    def judge_with(self, stall: Stall) -> list[str]:
        """Write the verdict, the table and NCCL's own report; return the lines for people."""
        ras = ask_ras()
        if ras:
            (self.path / "nccl-ras.txt").write_text(ras, encoding="utf-8")
        whole = "\n".join(report_lines(stall, shown=None))
        (self.path / "table.txt").write_text(whole + "\n", encoding="utf-8")
        write_json(self.verdict_file, stall.as_json())
        return report_lines(stall)

    def put_away(self) -> None:
        """Rename the directory to `stall-<n>`, so that another one can be made."""
        if self.path.exists():
            number = 1
            while self.path.with_name(f"stall-{number}").exists():
                number += 1
            self.path.rename(self.path.with_name(f"stall-{number}"))
