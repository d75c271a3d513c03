from __future__ import annotations

import math

import pytest

from moeframe.config.schema import LearningRateConfig
from moeframe.train.learning_rate import learning_rate

V3 = LearningRateConfig(warmup_steps=4, constant_steps=2, decay_steps=4, min_lr=0.1, min_lr_steps=2, final_lr=0.03)


def test_the_five_phases_of_the_report_follow_each_other() -> None:
    rates = [learning_rate(1.0, V3, step) for step in range(14)]
    cosine = [0.1 + 0.45 * (1 + math.cos(math.pi * share)) for share in (0.25, 0.5, 0.75, 1.0)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 1.0, *cosine, 0.1, 0.1, 0.03, 0.03])


def test_without_phases_the_rate_is_constant() -> None:
    assert [learning_rate(0.5, LearningRateConfig(), step) for step in (0, 10, 10**6)] == [0.5, 0.5, 0.5]


def test_no_step_runs_at_rate_zero() -> None:
    assert learning_rate(1.0, LearningRateConfig(warmup_steps=1000), 0) == pytest.approx(1e-3)


def test_without_a_final_rate_the_run_ends_at_the_lowest_one() -> None:
    phases = LearningRateConfig(constant_steps=1, decay_steps=2, min_lr=0.1)
    assert learning_rate(1.0, phases, 100) == pytest.approx(0.1)
