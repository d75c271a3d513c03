"""Lines of progress where no terminal shows a live one."""

from __future__ import annotations

import io

import pytest

from moeframe.train import progress
from moeframe.train.progress import Progress

METRICS = {"loss": 2.0, "ce_loss": 2.0, "tokens_per_second": 10.0, "max_violation": 0.5, "dead_experts": 0}


@pytest.mark.parametrize(
    ("step_s", "told"),
    [(0.1, [1, 100, 200, 300]), (12.0, [1, 4, 7, 10]), (60.0, [1, 2, 3, 4])],
    ids=["fast", "several within half a minute", "slow"],
)
def test_a_file_hears_of_a_step_in_twenty_parts_and_twice_a_minute(
    monkeypatch: pytest.MonkeyPatch, step_s: float, told: list[int]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    shown = Progress(2000, stream=stream)
    for step in range(1, 2001):
        now[0] += step_s
        shown.step(step, METRICS)
    steps = [int(line.split("/")[0].removeprefix("step ")) for line in stream.getvalue().splitlines()]
    assert steps[:4] == told
    assert steps[-1] == 2000
