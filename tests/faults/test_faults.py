"""Eight of the fifty faults run in CI (`-m drill`); `nox -s faults` meets all and writes the dated result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRILL = Path(__file__).with_name("drill.py")
RESULT = Path(__file__).parents[1] / "data" / "faults.json"


def drill(*arguments: str, timeout: float) -> list[dict[str, Any]]:
    command = [sys.executable, str(DRILL), *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=env, check=False)
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wrong = [one for one in results if one["wrong"]]
    assert done.returncode == 0, f"{wrong or done.stderr[-3000:]}"
    return results


@pytest.mark.drill
def test_a_four_rank_job_meets_eight_faults_under_three_schedules(tmp_path: Path) -> None:
    results = drill("0", "8", timeout=500)
    assert {one["fault"] for one in results} == {"kill", "stop", "raise", "slow", "disk", "corrupt", "term"}
    assert {one["family"] for one in results} == {"accumulate", "1f1b", "zbv"}


@pytest.mark.sweep
def test_the_other_forty_two(tmp_path: Path) -> None:
    assert len(drill("8", "50", timeout=3000)) == 42


def test_the_dated_result_holds_all_fifty_and_none_was_met_wrongly() -> None:
    result = json.loads(RESULT.read_text())
    assert sorted(one["seed"] for one in result["faults"]) == list(range(50))
    assert [one for one in result["faults"] if one["wrong"]] == []
    assert len({one["family"] for one in result["faults"]}) >= 3
    assert result["date"]
