"""No false alarm: a slow rank over 500 steps, and a long pause inside the first step."""

from __future__ import annotations

import pytest

from .conftest import SMALL, TINY, TWO, Ended, Runner

STUCK = ("--plugin", "stuck_parts", "run", str(TINY), *SMALL, *TWO, "dispatcher.name=stuck", "watchdog.save_s=60")


def require_silence(ended: Ended, steps: int) -> None:
    assert ended.code == 0, ended.err
    assert "verdict" not in ended.err
    assert not list(ended.run_dir.glob("stall*"))
    assert len(ended.metrics) == steps


def soak(moeframe: Runner, steps: int, pause_s: float, *limits: str, timeout: float) -> None:
    """Rank 1 takes about five times as long as rank 0 for every layer, and pauses in the first step."""
    slow = ("dispatcher.options.plan=slow@0", "dispatcher.options.seconds=0.02")
    pause = ("data.name=uneven", "data.options.pauses_after=1", f"data.options.pause_s={pause_s}")
    given = (*slow, *pause, *limits, f"train.steps={steps}", "checkpoint.final=false")
    require_silence(moeframe(*STUCK, *given, timeout=timeout), steps)


@pytest.mark.sweep
def test_a_slow_rank_and_a_pause_in_the_first_step_are_no_alarm(moeframe: Runner) -> None:
    soak(moeframe, 6, 5.0, "watchdog.min_s=3", "watchdog.first_step_s=60", timeout=120)


@pytest.mark.sweep
def test_over_500_steps_and_a_pause_of_60_s_there_is_no_alarm_with_the_default_limits(moeframe: Runner) -> None:
    soak(moeframe, 500, 60.0, timeout=1500)
