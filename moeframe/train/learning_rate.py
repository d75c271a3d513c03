"""The learning-rate schedule of DeepSeek-V3 (report, section 4.2), as a pure function of the step."""

from __future__ import annotations

import math

from moeframe.config.schema import LearningRateConfig

__all__ = ["learning_rate"]


def learning_rate(peak: float, phases: LearningRateConfig, step: int) -> float:
    """Return the rate of the optimizer step number `step`, counted from 0.

    Warm-up reaches the peak at the last of its steps (the rate of step s is peak x (s + 1) / warmup_steps), so no step
    runs at rate 0.
    """
    if step < phases.warmup_steps:
        return peak * (step + 1) / phases.warmup_steps
    step -= phases.warmup_steps
    if phases.constant_steps is None or step < phases.constant_steps:
        return peak
    step -= phases.constant_steps
    if step < phases.decay_steps:
        share = (step + 1) / phases.decay_steps
        return phases.min_lr + 0.5 * (peak - phases.min_lr) * (1.0 + math.cos(math.pi * share))
    step -= phases.decay_steps
    if phases.final_lr is None or phases.min_lr_steps is None or step < phases.min_lr_steps:
        return phases.min_lr if phases.decay_steps else peak
    return phases.final_lr
