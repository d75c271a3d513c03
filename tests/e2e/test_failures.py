"""A rank that fails ends every rank, and the last lines on the console say which, where and why."""

from __future__ import annotations

import json
import re
import signal
import time

import pytest

from moeframe.train.diagnosis import diagnose
from moeframe.watch.processes import health, start_ticks

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
    "launcher",
    [pytest.param("moeframe", id="moeframe"), pytest.param("torchrun", id="torchrun", marks=pytest.mark.sweep)],
)
def test_ranks_that_end_with_the_process_that_started_them_are_not_blamed(moeframe: Runner, launcher: str) -> None:
    command = ("run", str(TINY), *SMALL, *TWO, "data.name=synthetic", "train.steps=100000", "checkpoint.every=1")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    process = moeframe.start(*command, launcher=torchrun if launcher == "torchrun" else ())
    until = time.monotonic() + 60
    while not (whole := list(moeframe.cwd.glob("runs/*/*/checkpoints/*/COMPLETE"))):
        assert time.monotonic() < until
        time.sleep(0.05)
    process.kill()
    process.communicate()
    run_dir = whole[0].parents[2]
    pids = [rank["pid"] for rank in json.loads((run_dir / "ranks.json").read_text())]
    while any(health(pid, start_ticks(pid)) != "dead" for pid in pids) or (
        launcher == "torchrun" and not (run_dir / "stall" / "verdict.json").exists()
    ):
        assert time.monotonic() < until
        time.sleep(0.05)
    found = diagnose(run_dir)
    assert found.verdict is not None
    assert (found.verdict["kind"], list(found.verdict["ranks"])) == ("launcher_died", [0, 1])
    assert f"(process {process.pid} on " in found.verdict["cause"]
    assert re.search(r"with `moeframe run (\S+)/recipe.yaml --resume \1`\.$", found.verdict["advice"])


@pytest.mark.sweep
def test_a_rank_that_leaves_by_sys_exit_is_named_and_not_who_lost_it(moeframe: Runner) -> None:
    ended = moeframe(*FAULTY, "data.options.fault=exit", "data.options.rank=1", "train.steps=1000")
    assert ended.code == 1
    assert ended.err.splitlines()[-2] == "rank 1 failed at step 5, data (forward): SystemExit: 0"
    verdict = json.loads((ended.run_dir / "stall" / "verdict.json").read_text())
    assert (verdict["kind"], verdict["ranks"]) == ("rank_raised", [1])


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
