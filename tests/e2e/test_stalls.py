"""Real stalls of real processes: each is named rightly, with rank, step, layer and phase, and ends the job or not."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from .conftest import SMALL, TINY, TWO, Runner

LIMIT_S = 2.0
WATCHED = ("data.name=synthetic", f"watchdog.min_s={LIMIT_S}", "watchdog.first_step_s=60", "watchdog.save_s=60")
STUCK = ("--plugin", "stuck_parts", "run", str(TINY), *SMALL, *TWO, *WATCHED, "dispatcher.name=stuck")


def wait_for(path: Path, pattern: str, number: int = 1, timeout: float = 90.0) -> Path:
    until = time.monotonic() + timeout
    while len(found := sorted(path.glob(pattern))) < number:
        assert time.monotonic() < until, pattern
        time.sleep(0.05)
    return found[-1]


def verdict(run_dir: Path, stall: str = "stall") -> dict[str, Any]:
    return json.loads((run_dir / stall / "verdict.json").read_text())


def test_under_report_each_stall_is_told_once_and_the_job_goes_on_to_its_end(moeframe: Runner) -> None:
    process = moeframe.start(
        *STUCK,
        "train.steps=11",
        "watchdog.action=report",
        "data.name=uneven",
        "data.options.pauses_after=4",
        "data.options.pause_s=8",
        "dispatcher.options.plan=loop@5,kernel@7,idle@9,stop@11",
        "dispatcher.options.seconds=8",
    )
    try:
        stopped = wait_for(moeframe.cwd, "runs/*/*/stall-4").parent
        wait_for(stopped, "stall/verdict.json")
        doctor = moeframe("doctor", str(stopped))
        assert doctor.code == 1
        assert "rank_stopped" in doctor.out
        ranks = json.loads((stopped / "ranks.json").read_text())
        os.kill(ranks[1]["pid"], signal.SIGCONT)
        ended = moeframe.ended(process)
    finally:
        process.kill()
    assert ended.code == 0, ended.err
    assert len(ended.metrics) == 11
    found = [verdict(ended.run_dir, f"stall-{number}") for number in range(1, 6)]
    assert [(one["kind"], one["ranks"], one["step"], one["layer"], one["phase"]) for one in found] == [
        ("rank_absent", [1], 3, -1, "data"),
        ("rank_absent", [1], 5, 2, "attend"),
        ("backend_stuck", [0, 1], 7, 2, "dispatch"),
        ("all_idle", [0, 1], 9, 2, "attend"),
        ("rank_stopped", [1], 11, 2, "dispatch"),
    ]
    loop = (ended.run_dir / "stall-2" / "rank-1.stack").read_text()
    assert "in layout" in loop
    assert "is stopped: it has no stack" in (ended.run_dir / "stall-5" / "rank-1.stack").read_text()
    recorded = json.loads((ended.run_dir / "stall-2" / "rank-0.flight.json").read_text())
    assert any(entry["profiling_name"] == "gloo:all_to_all" for entry in recorded["entries"])
    told = (ended.run_dir / "told").read_text().split()
    assert told[::2] == [one["kind"] for one in found]
    assert moeframe("doctor", str(ended.run_dir)).out == "finished\n"


@pytest.mark.parametrize(
    ("given", "kind", "where"),
    [
        (("dispatcher.options.plan=order@3",), "collective_order", ([0, 1], 3, 2, "dispatch")),
        pytest.param(
            ("dispatcher.options.plan=shape@3",),
            "collective_arguments",
            ([0, 1], 3, 2, "dispatch"),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            ("dispatcher.options.plan=splits@3", "dispatcher.options.rank=0"),
            "collective_arguments",
            ([0], 3, 2, "dispatch"),
            marks=pytest.mark.sweep,
        ),
        pytest.param(
            ("data.name=uneven", "data.options.ends_after=4"),
            "data_ended",
            ([1], 3, -1, "data"),
            marks=pytest.mark.sweep,
        ),
    ],
    ids=["order", "shape", "splits", "data"],
)
def test_a_stall_ends_the_job_with_its_verdict(
    moeframe: Runner, given: tuple[str, ...], kind: str, where: tuple[Any, ...]
) -> None:
    ended = moeframe(*STUCK, "train.steps=1000", *given)
    assert ended.code == 1
    found = verdict(ended.run_dir)
    assert (found["kind"], (found["ranks"], found["step"], found["layer"], found["phase"])) == (kind, where)
    assert f"verdict: {kind}: " in ended.err
    for rank in (0, 1):
        assert kind in (ended.run_dir / "log" / f"rank-{rank}.log").read_text().splitlines()[-1]


@pytest.mark.sweep
def test_under_torchrun_a_stopped_rank_is_named_and_the_restart_resumes(moeframe: Runner, tmp_path: Path) -> None:
    (tmp_path / "once").mkdir()
    ended = moeframe.torchrun(
        *STUCK,
        "dispatcher.options.plan=stop@4",
        f"dispatcher.options.once={tmp_path / 'once'}",
        "checkpoint.every=1",
        options=("--max-restarts=2",),
    )
    assert ended.code == 0, ended.err
    run_dir = next(moeframe.cwd.glob("runs/*/*"))
    found = verdict(run_dir, "stall-1")
    assert (found["kind"], found["ranks"], found["step"], found["phase"]) == ("rank_stopped", [1], 4, "dispatch")
    assert not (run_dir / "stall").exists()
    steps = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert "watchdog" in (run_dir / "log" / "rank-0.log").read_text()
