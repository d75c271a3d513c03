"""What a person reads when a run has ended."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from moeframe.train.run_directory import RunDirectory
from moeframe.train.start import closing_words


def words(*, stopped_by: int = 0, **metrics: Any) -> list[str]:
    """Return the lines about a run whose last step has these metrics besides the usual ones."""
    usual = {"loss": 2.5, "ce_loss": 2.25, "skipped_steps": 0, "max_violation": 0.5}
    summary = {
        "steps_done": 3,
        "metrics": {**usual, **metrics},
        "validation_loss": metrics.get("validation_loss"),
        "seconds": 65.0,
        "stopped_by": stopped_by,
        "substitutions": [],
    }
    return closing_words(RunDirectory(Path("runs/one")), summary, "none").splitlines()


def test_the_last_step_is_summed_up() -> None:
    assert words()[:2] == [
        "done: 3 steps in 1:05",
        "  loss 2.500, ce_loss 2.250, largest expert load 1.50 x the mean",
    ]


def test_a_last_step_that_was_left_out_is_called_so() -> None:
    said = "  last step left out: not finite (2 so far), largest expert load 1.50 x the mean"
    assert words(loss=None, ce_loss=None, skipped_steps=2)[1] == said
    stopped = words(loss=None, ce_loss=None, skipped_steps=2, stopped_by=signal.SIGTERM)
    assert stopped[0] == "stopped by SIGTERM after 3 steps in 1:05"
    assert stopped[1] == said


def test_a_validation_that_is_not_finite_is_told_from_none() -> None:
    assert ", validation 2.125," in words(validation_loss=2.125)[1]
    assert ", validation not finite," in words(validation_loss=None)[1]
    assert "validation" not in words()[1]
