"""A rank that fails ends every rank, and the last lines on the console say which, where and why."""

from __future__ import annotations

import json
import signal
import time

import pytest

from .conftest import SMALL, TINY, TWO, Runner

FAULTY = ("--plugin", "faulty_data", "run", str(TINY), *SMALL, *TWO, "data.name=faulty")


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.sweep), 1])
def test_c59_the_rank_that_raises_is_named_with_step_phase_and_error(moeframe: Runner, rank: int) -> None:
    started = time.monotonic()
    ended = moeframe(*FAULTY, "data.options.fault=raise", f"data.options.rank={rank}", "train.steps=1000")
    assert ended.code == 1
    last = ended.err.splitlines()[-2:]
    assert last[0] == f"rank {rank} failed at step 5, data (forward): ValueError: bad batch"
    assert last[1].startswith("logs: ")
    assert 'raise ValueError("bad batch")' in ended.err
    assert time.monotonic() - started < 60
    verdict = json.loads((ended.run_dir / "stall" / "verdict.json").read_text())
    assert (verdict["kind"], verdict["ranks"], verdict["step"], verdict["phase"]) == ("rank_raised", [rank], 5, "data")
    for log in (ended.run_dir / "log").glob("rank-?.log"):
        assert "ValueError: bad batch" in log.read_text(), log.name


def test_c59_under_torchrun_every_rank_ends_with_the_root_cause(moeframe: Runner) -> None:
    ended = moeframe.torchrun(*FAULTY, "data.options.fault=raise", "data.options.rank=1", "train.steps=1000")
    assert ended.code == 1
    assert "rank 1 failed at step 5, data (forward): ValueError: bad batch" in ended.err
    assert "Root Cause" in ended.err
    logs = list(moeframe.cwd.glob("runs/*/*/log/rank-?.log"))
    assert len(logs) == 2
    assert all("ValueError: bad batch" in log.read_text() for log in logs)


def test_a_killed_rank_is_named(moeframe: Runner) -> None:
    ended = moeframe(*FAULTY, "data.options.fault=kill", "data.options.rank=1", "train.steps=1000")
    assert ended.code == 1
    assert "rank 1 was killed by SIGKILL" in ended.err.splitlines()[-2]
    verdict = json.loads((ended.run_dir / "stall" / "verdict.json").read_text())
    assert (verdict["kind"], verdict["ranks"], verdict["step"], verdict["phase"]) == ("rank_died", [1], 5, "data")
    for rank in (0, 1):
        last = (ended.run_dir / "log" / f"rank-{rank}.log").read_text().splitlines()[-1]
        assert "rank_died: rank 1 was killed by SIGKILL at step 5, data (forward)" in last


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        pytest.param("term", signal.SIGTERM, id="SIGTERM"),
        pytest.param("interrupt", signal.SIGINT, id="SIGINT", marks=pytest.mark.sweep),
    ],
)
def test_a_signal_to_one_rank_saves_and_stops_all(moeframe: Runner, fault: str, number: int) -> None:
    ended = moeframe(*FAULTY, f"data.options.fault={fault}", "data.options.rank=1", "train.steps=1000")
    assert ended.code == 128 + number
    assert (ended.run_dir / "checkpoints" / "step-4" / "COMPLETE").is_file()
    assert "--resume" in ended.out.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGHUP, marks=pytest.mark.sweep)])
def test_a_signal_to_the_command_saves_at_a_step_boundary(moeframe: Runner, number: signal.Signals) -> None:
    process = moeframe.start("run", str(TINY), *SMALL, *TWO, "train.steps=100000")
    until = time.monotonic() + 60
    while not any(path.stat().st_size for path in moeframe.cwd.glob("runs/*/*/metrics.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    ended = moeframe.ended(process)
    assert ended.code == 128 + number
    assert f"stopped by {number.name}" in ended.out
    done = ended.metrics[-1]["step"]
    assert (ended.run_dir / "checkpoints" / f"step-{done}" / "COMPLETE").is_file()
