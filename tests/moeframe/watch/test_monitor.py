"""The watchdog over ranks that are played by small processes: when it speaks, when not, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from moeframe.protocols.stall import Stall
from moeframe.trace import Place
from moeframe.watch.beacon import Beacon, beacon_file
from moeframe.watch.monitor import Limits, Monitor, SupersededError
from moeframe.watch.processes import health, start_ticks
from moeframe.watch.record import pack_header, read_header
from moeframe.watch.stall import StallDirectory

RANK = """
import sys, time
from pathlib import Path
from moeframe.trace import Place
from moeframe.watch.beacon import lit
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
with lit(folder, rank, {"rank": rank, "world_size": world}) as beacon:
    place = Place(step=1, phase="data")
    step = 1
    for line in sys.stdin:
        if line == "end\\n":
            break
        if line == "die\\n":
            import os
            os._exit(3)
        if line == "leave\\n":
            import os
            os._exit(0)
        if line == "linger\\n":
            beacon.end(failed=False)
            print("done", flush=True)
            time.sleep(100)
        if line == "raise\\n":
            raise ValueError("bad batch")
        if line == "step\\n":
            step += 1
        place = Place(step=step, layer=2, phase=line.strip() if line.strip() in ("save", "dispatch") else "data")
        beacon.enter(place)
        print("done", flush=True)
"""
SHORT = Limits(min_s=0.4, median_steps=2.0, first_step_s=0.4, save_s=60.0)


class Played:
    def __init__(self, folder: Path, world: int) -> None:
        self.folder = folder
        self.told: list[tuple[Stall, list[str]]] = []
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(world), str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for rank in range(world)
        ]
        for rank in range(world):
            self.say(rank, "data")

    def say(self, rank: int, word: str, *, answers: bool = True) -> None:
        process = self.processes[rank]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{word}\n")
        process.stdin.flush()
        if answers:
            assert process.stdout.readline() == "done\n"

    def monitor(self, limits: Limits = SHORT, *, stop: bool = True, judges_deaths: bool = True, **more) -> Monitor:
        return Monitor(
            self.folder,
            ranks=range(len(self.processes)),
            world_size=len(self.processes),
            limits=limits,
            stop=stop,
            judges_deaths=judges_deaths,
            raised=list,
            tell=lambda stall, lines: self.told.append((stall, lines)),
            **more,
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def played(tmp_path: Path) -> Iterator[Callable[[int], Played]]:
    made: list[Played] = []

    def make(world: int) -> Played:
        made.append(Played(tmp_path, world))
        return made[-1]

    yield make
    for one in made:
        one.close()


def until(condition: Callable[[], bool], limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_rank_that_stands_still_is_told_once_with_its_stack_and_the_job_is_ended(played) -> None:
    job = played(2)
    watch = job.monitor()
    until(watch.poll)
    assert [stall.kind for stall, _ in job.told] == ["all_idle"]
    assert watch.poll()
    watch.end_ranks()
    assert [process.wait() for process in job.processes] == [-signal.SIGKILL] * 2
    assert watch.over()
    stall = job.folder / "stall"
    written = json.loads((stall / "verdict.json").read_text())
    assert (written["kind"], written["step"], written["phase"]) == ("all_idle", 1, "data")
    assert "<string>" in (stall / "rank-0.stack").read_text()
    assert (stall / "table.txt").read_text().splitlines() == job.told[0][1]


def test_ranks_that_move_are_left_alone_also_while_one_saves(played) -> None:
    job = played(2)
    watch = job.monitor()
    for _ in range(8):
        for rank in (0, 1):
            job.say(rank, "step")
        assert not watch.poll()
        time.sleep(0.1)
    job.say(1, "save")
    time.sleep(0.6)
    assert not watch.poll()
    assert not (job.folder / "stall").exists()


def test_the_first_step_has_a_limit_of_its_own(played) -> None:
    job = played(1)
    watch = job.monitor(Limits(min_s=0.1, median_steps=1.0, first_step_s=60.0, save_s=0.1))
    watch.poll()
    time.sleep(0.4)
    assert not watch.poll()
    job.say(0, "step")
    watch.poll()
    time.sleep(0.4)
    until(watch.poll)


def test_a_stopped_rank_is_named_and_killed(played) -> None:
    job = played(2)
    watch = job.monitor()
    os.kill(job.processes[1].pid, signal.SIGSTOP)
    until(watch.poll)
    assert (job.told[0][0].kind, job.told[0][0].ranks) == ("rank_stopped", (1,))
    watch.end_ranks()
    assert job.processes[1].wait() == -signal.SIGKILL


def test_a_rank_that_dies_is_named_only_by_who_judges_deaths(played) -> None:
    job = played(2)
    patient = Limits(min_s=60.0, median_steps=1.0, first_step_s=60.0, save_s=60.0)
    other = job.monitor(patient, judges_deaths=False)
    watch = job.monitor(patient)
    job.say(1, "die", answers=False)
    job.processes[1].wait()
    assert not other.poll()
    until(watch.poll)
    assert (job.told[0][0].kind, job.told[0][0].ranks) == ("rank_died", (1,))


def test_how_a_process_ended_is_part_of_the_verdict_of_who_knows_it(played) -> None:
    job = played(2)
    watch = job.monitor(judges_deaths=False)
    watch.poll()
    job.say(1, "die", answers=False)
    job.processes[1].wait()
    watch.ended(1, 3)
    watch.conclude()
    assert "rank 1 ended with exit code 3 at step 1" in job.told[0][0].cause
    watch.conclude()
    assert len(job.told) == 1


def test_two_monitors_reach_one_verdict_and_both_act_on_it(played) -> None:
    job = played(2)
    first, second = job.monitor(), job.monitor()
    until(first.poll)
    assert second.poll()
    assert len(job.told) == 1


def test_a_rank_that_goes_on_while_evidence_is_gathered_gets_no_verdict(
    played, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = played(1)
    watch = job.monitor()
    give = StallDirectory.give
    monkeypatch.setattr(StallDirectory, "give", lambda *given: (give(*given), job.say(0, "step")))
    until(lambda: watch.poll() or caplog.messages)
    assert not job.told
    assert caplog.messages == ["rank 0, which had stood still, goes on at step 2, layer 2, data (forward): no verdict"]
    assert not (job.folder / "stall").exists()
    monkeypatch.undo()
    until(watch.poll)
    assert [stall.kind for stall, _ in job.told] == ["all_idle"]


@pytest.mark.parametrize("asked", [True, False])
def test_where_the_watchdog_that_leads_has_gone_another_one_judges(
    played, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setattr("moeframe.watch.monitor._LEADER_S", 0.3)
    job = played(1)
    gone = StallDirectory(run_dir=job.folder)
    assert gone.claim()
    if asked:
        gone.ask("rank 0 has not moved")
    watch = job.monitor()
    assert not watch.poll()
    until(watch.poll)
    assert [stall.kind for stall, _ in job.told] == ["all_idle"]


def test_under_report_a_stall_is_told_once_and_the_next_one_again(played) -> None:
    job = played(1)
    watch = job.monitor(stop=False)
    until(lambda: not watch.poll() and len(job.told) == 1)
    for _ in range(5):
        assert not watch.poll()
    assert len(job.told) == 1
    job.say(0, "step")
    watch.poll()
    assert (job.folder / "stall-1" / "verdict.json").exists()
    until(lambda: not watch.poll() and len(job.told) == 2)
    job.say(0, "end", answers=False)
    job.processes[0].wait()
    watch.close()
    assert not (job.folder / "stall").exists()
    assert (job.folder / "stall-2").exists()


def empty(folder: Path, told: list[tuple[Stall, list[str]]], *, stop: bool) -> Monitor:
    return Monitor(
        folder,
        ranks=range(2),
        world_size=2,
        limits=SHORT,
        stop=stop,
        judges_deaths=False,
        raised=list,
        tell=lambda stall, lines: told.append((stall, lines)),
    )


def test_ranks_that_never_start_get_a_verdict_that_ends_the_job(tmp_path: Path) -> None:
    told: list[tuple[Stall, list[str]]] = []
    watch = empty(tmp_path, told, stop=True)
    assert not watch.poll()
    until(watch.poll, 5.0)
    assert watch.poll()
    watch.ended(0, -signal.SIGKILL)
    watch.conclude()
    assert [(stall.kind, stall.ranks) for stall, _ in told] == [("rank_absent", (0, 1))]
    assert json.loads((tmp_path / "stall" / "verdict.json").read_text())["cause"] == told[0][0].cause


def test_a_rank_that_is_stopped_before_it_has_a_beacon_is_named_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Stall, list[str]]] = []
    process = subprocess.Popen(["sleep", "100"])
    try:
        process.send_signal(signal.SIGSTOP)
        until(lambda: health(process.pid, start_ticks(process.pid)) == "stopped")
        Beacon(beacon_file(tmp_path, 0), {"rank": 0, "world_size": 2})
        watch = empty(tmp_path, told, stop=True)
        watch.know({1: (process.pid, start_ticks(process.pid))})
        until(watch.poll, 5.0)
        assert [(stall.kind, stall.ranks) for stall, _ in told] == [("rank_stopped", (1,))]
        assert "the process of rank 1 is stopped" in told[0][0].cause
        ended: list[int] = []
        monkeypatch.setattr("moeframe.watch.monitor.end", lambda pid, _: ended.append(pid))  # this process is rank 0
        watch.end_ranks()
        assert process.pid in ended
    finally:
        process.kill()
        process.wait()


def test_a_rank_that_ends_before_it_has_a_beacon_is_named_and_those_that_wait_for_it_are_not(tmp_path: Path) -> None:
    told: list[tuple[Stall, list[str]]] = []
    watch = empty(tmp_path, told, stop=True)
    watch.ended(1, -signal.SIGKILL)
    watch.conclude()
    assert [(stall.kind, stall.ranks) for stall, _ in told] == [("rank_died", (1,))]
    assert told[0][0].cause == "rank 1 was killed by SIGKILL before it had started: no beacon of it is there"


def test_a_rank_that_leaves_early_as_if_all_was_well_is_named_without_waiting_for_the_limit(
    played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moeframe.watch.monitor._GRACE_S", 0.1)
    job = played(2)
    watch = job.monitor(Limits(min_s=60.0, median_steps=2.0, first_step_s=60.0, save_s=60.0), judges_deaths=False)
    watch.poll()
    job.say(1, "leave", answers=False)
    watch.ended(1, job.processes[1].wait())
    until(watch.poll)
    assert [(stall.kind, stall.ranks) for stall, _ in job.told] == [("rank_died", (1,))]
    assert "rank 1 ended with exit code 0 at step 1" in job.told[0][0].cause


def test_a_process_that_does_not_end_after_training_is_told(played) -> None:
    job = played(1)
    watch = job.monitor()
    job.say(0, "linger")
    until(watch.poll)
    watch.close()
    assert [stall.kind for stall, _ in job.told] == ["all_idle"]
    assert "training is over, and a process does not end (rank 0 after step 1" in job.told[0][0].cause
    assert (job.folder / "stall" / "verdict.json").exists()


@pytest.mark.parametrize("first", ["launcher", "rank"])
def test_a_launcher_that_ends_before_its_ranks_is_what_ended_them(played, first: str) -> None:
    job = played(1)
    launcher = subprocess.Popen(["sleep", "100"])
    watch = job.monitor(launcher=(launcher.pid, start_ticks(launcher.pid)))
    watch.poll()
    for process in (launcher, job.processes[0])[:: 1 if first == "launcher" else -1]:
        process.kill()
        process.wait()
        watch.wait()
    until(watch.poll)
    found = job.told[0][0]
    assert (found.kind, found.ranks) == ("launcher_died" if first == "launcher" else "rank_died", (0,))
    assert (f"process {launcher.pid} on" in found.cause) == (first == "launcher")


def test_under_report_ranks_that_start_late_are_told_once_and_watched_after(tmp_path: Path) -> None:
    told: list[tuple[Stall, list[str]]] = []
    watch = empty(tmp_path, told, stop=False)
    until(lambda: not watch.poll() and len(told) == 1, 5.0)
    for _ in range(5):
        assert not watch.poll()
    assert len(told) == 1
    late = [Beacon(beacon_file(tmp_path, rank), {"rank": rank, "world_size": 2}) for rank in (0, 1)]
    for one in late:
        one.enter(Place(step=1, phase="data"))
    watch.poll()
    assert (tmp_path / "stall-1" / "verdict.json").exists()
    assert not (tmp_path / "stall").exists()
    until(lambda: not watch.poll() and len(told) == 2)
    assert told[1][0].kind == "all_idle"


def test_a_rank_that_finished_is_not_still(played) -> None:
    job = played(1)
    watch = job.monitor()
    watch.poll()
    job.say(0, "end", answers=False)
    job.processes[0].wait()
    time.sleep(0.6)
    assert not watch.poll()
    assert watch.over()


def test_a_watchdog_leaves_when_other_processes_have_taken_over(played, tmp_path: Path) -> None:
    job = played(1)
    watch = job.monitor()
    watch.poll()
    again = Played(tmp_path, 1)
    try:
        with pytest.raises(SupersededError):
            watch.poll()
    finally:
        again.close()


def test_ranks_of_a_host_that_gives_no_sign_are_dead(played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeframe.watch.stall._HOSTS_S", 0.2)
    job = played(1)
    file = beacon_file(job.folder, 1)
    Beacon(file, {"rank": 1, "world_size": 2}).enter(Place(step=1, phase="data"))
    data = file.read_bytes()
    packed = pack_header(read_header(data) | {"host": "elsewhere", "machine": "elsewhere"})
    file.write_bytes(packed + data[len(packed) :])
    watch = Monitor(
        job.folder,
        ranks=[0],
        world_size=2,
        limits=SHORT,
        stop=True,
        judges_deaths=True,
        raised=list,
        tell=lambda stall, lines: job.told.append((stall, lines)),
    )
    until(watch.poll)
    assert (job.told[0][0].kind, job.told[0][0].ranks) == ("rank_died", (1,))
    assert "elsewhere" in job.told[0][0].cause


def test_what_a_host_gave_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    stall = StallDirectory(run_dir=tmp_path)
    stall.claim()
    for host, text in (("a", "[1]"), ("b", '{"0": "al'), ("c", '{"1": "alive", "future": "x"}')):
        (stall.path / f"host-{host}.json").write_text(text)
    assert stall.states() == {1: "alive"}


def test_where_py_spy_is_installed_its_stacks_lie_beside_the_others(
    played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "py-spy"
    program.write_text('#!/bin/sh\necho "native stack of $5"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    job = played(1)
    watch = job.monitor()
    until(watch.poll)
    assert f"native stack of {job.processes[0].pid}" in (job.folder / "stall" / "rank-0.py-spy").read_text()
