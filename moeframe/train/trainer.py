"""The loop: one step after the other, the same on every rank."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from moeframe import trace
from moeframe.config.substitutes import Substitution
from moeframe.debug.poison import require_written_gradients
from moeframe.launch.signals import ending_signals
from moeframe.model.counts import flops_per_token
from moeframe.protocols.data import MicroBatch, TokenSequence
from moeframe.protocols.loads import LayerLoad
from moeframe.protocols.schedule import StepResult
from moeframe.train.bad_steps import BadSteps, is_good, without_nonfinite
from moeframe.train.checkpoint import Checkpoints
from moeframe.train.data import BatchPlan, DataOrder, make_micro_batch, padding_sequence
from moeframe.train.learning_rate import learning_rate
from moeframe.train.loads import LoadsFile, StepLoads, layer_loads
from moeframe.train.metrics import (
    StepTokens,
    agree_on_tokens,
    dead_experts,
    gather_sums,
    max_violation,
    peak_flops,
    peak_memory_bytes,
)
from moeframe.train.progress import Progress
from moeframe.train.step_file import StepFile, read_steps

if TYPE_CHECKING:
    from moeframe.train.assemble import Job
    from moeframe.train.run_directory import RunDirectory

__all__ = ["Computed", "Summary", "Trainer"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """How a run ended. `stopped_by` is the signal that ended it early, 0 if it reached its last step.

    Losses that are not finite are None.
    """

    steps_done: int
    metrics: dict[str, Any]
    validation_loss: float | None
    seconds: float
    stopped_by: int
    substitutions: tuple[Substitution, ...] = ()
    """Backends in place of those that the recipe names."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Computed:
    """A step between backward and optimizer. `grad_norm` is the global norm before clipping."""

    tokens: StepTokens
    result: StepResult
    grad_norm: torch.Tensor
    micro_batches: Sequence[MicroBatch] = ()


class Trainer:
    """Trains a job. Rank 0 writes metrics.jsonl and shows progress; all ranks compute the same numbers."""

    def __init__(
        self, job: Job, run_dir: RunDirectory | None = None, *, resume_step: int = 0, progress: bool = True
    ) -> None:
        """Prepare the loop, and load the checkpoint of `resume_step` unless that is 0. Collective.

        Without a run directory nothing is written.
        """
        self._job = job
        self._first_step = resume_step
        recipe, meshes = job.recipe, job.meshes
        self._train = recipe.train
        first = job.world.rank == 0
        self._metrics_file: StepFile | None = None
        self._loads_file: LoadsFile | None = None
        if run_dir is not None and first:
            self._metrics_file = StepFile(run_dir.metrics_file, keep_steps=resume_step)
            if self._train.loads_every:
                every = self._train.loads_every
                self._loads_file = LoadsFile(run_dir.loads_file, every=every, keep_steps=resume_step)
        self._loads: tuple[LayerLoad, ...] = ()
        self._progress = Progress(self._train.steps, first_step=resume_step) if progress and first else None
        self._checkpoints: Checkpoints | None = None
        if run_dir is not None:
            self._checkpoints = Checkpoints(run_dir.checkpoints, job, keep=recipe.checkpoint.keep)
            if resume_step:
                self._checkpoints.load(resume_step)
        self._batches = BatchPlan(
            global_batch_size=self._train.global_batch_size,
            micro_batch_size=self._train.micro_batch_size,
            data_rank=meshes.rank("dp"),
            data_ranks=meshes.size("dp"),
        )
        self._order = DataOrder(job.train_data.num_sequences, self._train.seed)
        self._depth = recipe.model.num_nextn_predict_layers
        self._flops = flops_per_token(recipe.model, self._train.seq_len)
        self._stop = 0
        before: list[dict[str, Any]] = []
        if self._metrics_file is not None and resume_step and run_dir is not None:
            before = [line for line in read_steps(run_dir.metrics_file) if line["step"] == resume_step]
        self._bad_steps = BadSteps(job, skipped=before[0].get("skipped_steps", 0) if before else 0)

    def run(self) -> Summary:
        """Train to the last step, or until a signal; validate at the end when the recipe asks for it.

        SIGINT, SIGTERM and SIGHUP set a flag that all ranks agree on at the next step boundary.
        """
        started = time.monotonic()
        metrics: dict[str, Any] = {}
        validation: float | None = None
        done, stopped_by = self._first_step, 0
        with self._listening_to_signals():
            while done < self._train.steps:
                outcome = self.step(done)
                if isinstance(outcome, int):
                    stopped_by = outcome
                    break
                done += 1
                metrics = outcome
                with trace.at(step=done):
                    every = self._train.eval_every
                    if every and (done % every == 0 or done == self._train.steps):
                        metrics |= without_nonfinite({"validation_loss": self.evaluate()})
                        validation = metrics["validation_loss"]
                    self._report(done, metrics)
                    self._save_if_due(done)
            with trace.at(step=done):
                self._save_last(done, stopped_by)
        return self._summary(done, metrics, validation, started, stopped_by=stopped_by)

    def _save_if_due(self, done: int) -> None:
        every = self._job.recipe.checkpoint.every
        if self._checkpoints is not None and every and done % every == 0:
            with trace.span(phase="save"):
                self._checkpoints.save(done)

    def _save_last(self, done: int, stopped_by: int) -> None:
        """Save when a signal ended the run, and after the last step if the recipe says so; wait until all is whole."""
        if self._checkpoints is None:
            return
        with trace.span(phase="save"):
            if done > self._first_step and (stopped_by or self._job.recipe.checkpoint.final):
                self._checkpoints.save(done)
            self._checkpoints.wait()

    def step(self, step: int) -> dict[str, Any] | int:
        """Run optimizer step number `step`, counted from 0.

        Returns:
            The metrics of the step, or the signal that all ranks agreed to stop for, before anything was computed.

        Raises:
            JobFailedError: the checkpoint under way has failed on some rank, or the loss or the gradient is not finite.
        """
        begun = time.perf_counter()
        with trace.at(step=step + 1):
            computed = self.compute_gradients(step)
            if isinstance(computed, int):
                return computed
            metrics = self.apply_gradients(step, computed)
            self._bad_steps.judge(metrics, computed.micro_batches)
        elapsed = time.perf_counter() - begun  # reading the sums has waited for the device
        return {
            "step": step + 1,
            **without_nonfinite(metrics),
            "skipped_steps": self._bad_steps.skipped,
            "tokens_per_second": metrics["tokens"] / elapsed,
            "step_ms": elapsed * 1e3,
            "mfu": self._mfu(metrics["tokens"] / elapsed),
            "peak_memory_bytes": peak_memory_bytes(self._job.meshes.device),
            "time": datetime.now(tz=UTC).isoformat(),
        }

    def compute_gradients(self, step: int) -> Computed | int:
        """Run forward and backward of a step and clip; the optimizer has not run. Or return the agreed signal."""
        job = self._job
        with trace.span(phase="data"):
            micro_batches = self._micro_batches(step)
            failed = self._checkpoints is not None and self._checkpoints.failed()
            tokens = self._agree(micro_batches, stop=self._stop, save_failed=failed)
        if tokens.save_failed:
            assert self._checkpoints is not None
            self._checkpoints.wait()
        if tokens.stop:
            return tokens.stop
        self._begin_step(tokens)
        result = job.schedule.run_step(job.stages, micro_batches)
        with trace.span(phase="gradients"):
            job.sharded.finish_gradients()
            if job.recipe.debug.poison:
                require_written_gradients(job.model)
            norm = job.sharded.clip_(job.recipe.optimizer.clip_grad_norm)
        return Computed(tokens=tokens, result=result, grad_norm=norm, micro_batches=micro_batches)

    def apply_gradients(self, step: int, computed: Computed) -> dict[str, Any]:
        """Run the optimizer and the update of the expert bias; return the losses and loads of the step, global.

        A step of which the loss or the gradient is not finite changes nothing but the loads that it returns.
        """
        job, tokens = self._job, computed.tokens
        with trace.span(phase="optimizer"):
            rate = learning_rate(job.recipe.optimizer.lr, job.recipe.optimizer.lr_schedule, step)
            for group in job.optimizer.param_groups:
                group["lr"] = rate
            # The one wait for the device. The sums and the norm are global: all ranks decide alike.
            sums = gather_sums(computed.result, job.model.take_counters())
            grad_norm = float(computed.grad_norm)
            ce_loss = sums.ce_sum / tokens.loss_tokens
            mtp_loss = self._mtp_mean(sums.mtp_sums, tokens)
            balance_loss = sums.balance_sum / max(1, tokens.valid_tokens)
            loss = ce_loss + job.recipe.model.mtp_loss_weight * mtp_loss + balance_loss
            if is_good(loss, grad_norm):
                job.optimizer.step()
                job.model.update_expert_bias(sums.tokens_per_expert)
            job.optimizer.zero_grad(set_to_none=True)
        self._loads = layer_loads(sums.loads.tolist(), job.recipe.model)
        return {
            "loss": loss,
            "ce_loss": ce_loss,
            "balance_loss": balance_loss,
            "mtp_loss": mtp_loss,
            "grad_norm": grad_norm,
            "lr": rate,
            "tokens": tokens.valid_tokens,
            "max_violation": max_violation(sums.loads),
            "dead_experts": dead_experts(sums.loads),
            "dropped_tokens": sums.dropped,
        }

    def evaluate(self) -> float:
        """Return the mean cross-entropy on held-out sequences, in nats per token, the same on every rank."""
        job = self._job
        with trace.span(phase="evaluate"), self._evaluating():
            micro_batches = list(self._validation_batches())
            tokens = self._agree(micro_batches)
            self._begin_step(tokens)
            result = job.schedule.run_evaluation(job.stages, micro_batches)
            sums = gather_sums(result, job.model.take_counters())
        return sums.ce_sum / tokens.loss_tokens

    def _agree(self, micro_batches: list[MicroBatch], *, stop: int = 0, save_failed: bool = False) -> StepTokens:
        meshes = self._job.meshes
        return agree_on_tokens(
            micro_batches,
            mtp_depth=self._depth,
            copies=meshes.size("pp"),
            device=meshes.device,
            stop=stop,
            save_failed=save_failed,
        )

    def _begin_step(self, tokens: StepTokens) -> None:
        self._job.model.step_state.begin(
            loss_tokens=tokens.loss_tokens, mtp_tokens=tokens.mtp_tokens, valid_tokens=tokens.valid_tokens
        )

    def _micro_batches(self, step: int) -> list[MicroBatch]:
        data = self._job.train_data
        return [
            self._stack([data.sequence(self._order.index(position)) for position in positions])
            for positions in self._batches.positions(step)
        ]

    def _validation_batches(self) -> Iterator[MicroBatch]:
        """Yield this rank's share; every rank has the same number of batches, filled up with padding.

        Always the same sequences, drawn from all that is held out: the first ones would be those of a file or two.
        """
        data, size = self._job.validation_data, self._train.micro_batch_size
        order = DataOrder(data.num_sequences, self._train.seed)
        wanted = min(self._train.eval_sequences, data.num_sequences)
        ranks = self._job.meshes.size("dp")
        rounds = -(-wanted // (ranks * size))
        for number in range(rounds):
            start = (number * ranks + self._job.meshes.rank("dp")) * size
            yield self._stack(
                [
                    data.sequence(order.index(place)) if place < wanted else padding_sequence(self._train.seq_len)
                    for place in range(start, start + size)
                ]
            )

    def _stack(self, sequences: list[TokenSequence]) -> MicroBatch:
        return make_micro_batch(sequences, mtp_depth=self._depth, device=self._job.meshes.device)

    @staticmethod
    def _mtp_mean(sums: tuple[float, ...], tokens: StepTokens) -> float:
        """Return the mean over depths of each depth's mean (report, equation 25); 0 without MTP."""
        means = [total / count for total, count in zip(sums, tokens.mtp_tokens, strict=True) if count]
        return sum(means) / len(sums) if sums else 0.0

    def _mfu(self, tokens_per_second: float) -> float | None:
        peak = peak_flops(self._job.meshes.device)
        return None if peak is None else tokens_per_second * self._flops / (peak * self._job.world.world_size)

    def _report(self, step: int, metrics: dict[str, Any]) -> None:
        if self._metrics_file is not None:
            self._metrics_file.write(metrics)
        if self._loads_file is not None:
            self._loads_file.add(StepLoads(step=step, layers=self._loads))
        if self._progress is not None:
            self._progress.step(step, metrics)
        if self._job.world.rank == 0:
            self._job.host.call_each("moeframe_on_step_end", step=step, metrics=metrics, loads=self._loads)

    def _summary(
        self, done: int, metrics: dict[str, Any], validation: float | None, started: float, *, stopped_by: int
    ) -> Summary:
        if self._progress is not None:
            self._progress.close()
        if self._metrics_file is not None:
            self._metrics_file.close()
        if self._loads_file is not None:
            self._loads_file.close()
        return Summary(
            steps_done=done,
            metrics=metrics,
            validation_loss=validation,
            seconds=time.monotonic() - started,
            stopped_by=stopped_by,
            substitutions=self._job.composition.substitutions,
        )

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        self._job.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._job.model.train()

    @contextmanager
    def _listening_to_signals(self) -> Iterator[None]:
        def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
            self._stop = number

        before = {number: signal.signal(number, note) for number in ending_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
