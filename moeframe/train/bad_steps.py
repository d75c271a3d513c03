"""Steps of which the loss or the gradient is not finite: all ranks stop, or all leave the step out."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from moeframe import trace
from moeframe.debug.nonfinite import locate
from moeframe.errors import JobFailedError
from moeframe.protocols.data import MicroBatch

if TYPE_CHECKING:
    from moeframe.train.assemble import Job

__all__ = ["BadSteps", "is_good", "without_nonfinite"]

logger = logging.getLogger(__name__)

_MOST_IN_A_ROW: Final = 20
"""A run whose parameters are spoilt would leave out every step."""


def is_good(loss: float, grad_norm: float) -> bool:
    """Say whether a step may change parameters. Both numbers are global, so all ranks say the same."""
    return math.isfinite(loss) and math.isfinite(grad_norm)


def without_nonfinite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with None for NaN and infinity, which JSON does not have."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in metrics.items()
    }


class BadSteps:
    """Judges steps by numbers that are the same on every rank. `skipped` counts the ones left out, of the whole run."""

    def __init__(self, job: Job, *, skipped: int = 0) -> None:
        self._job = job
        self.skipped = skipped
        self._in_a_row = 0

    def judge(self, metrics: Mapping[str, Any], micro_batches: Sequence[MicroBatch]) -> None:
        """Look at a step that has changed nothing if it was bad. Collective only then.

        Args:
            metrics: of `Trainer.apply_gradients`.
            micro_batches: of the step on this rank.

        Raises:
            JobFailedError: the step is bad and the recipe says stop, or too many were left out in a row.
        """
        loss, norm = metrics["loss"], metrics["grad_norm"]
        if is_good(loss, norm):
            self._in_a_row = 0
            return
        text = f"the loss is {loss}, the gradient norm {norm}. {self._where(micro_batches)}"
        if self._job.recipe.train.on_nonfinite == "stop":
            raise JobFailedError(
                f"{text} No parameter was changed. train.on_nonfinite=skip leaves such steps out; a smaller "
                f"optimizer.lr or optimizer.clip_grad_norm may avoid them."
            )
        self.skipped += 1
        self._in_a_row += 1
        logger.warning("%s is left out: %s", trace.current(), text)
        if self._in_a_row >= _MOST_IN_A_ROW:
            raise JobFailedError(f"{_MOST_IN_A_ROW} steps in a row were left out. The last one: {text}")

    def _where(self, micro_batches: Sequence[MicroBatch]) -> str:
        job = self._job

        def run_again() -> None:
            job.schedule.run_step(job.stages, micro_batches)
            job.sharded.finish_gradients()

        try:
            return locate(job.model, run_again)
        finally:
            job.optimizer.zero_grad(set_to_none=True)
            job.model.take_counters()
