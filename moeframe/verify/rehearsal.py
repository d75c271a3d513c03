"""A job as a rank of `verify` runs it: assembled and trained as any other, watched where numbers are made."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from collections.abc import Sequence as AbstractSequence
from typing import Any, cast

import numpy
import torch
from torch import nn

from moeframe.config.schema import Recipe
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.protocols.sharding import ShardedModel
from moeframe.train.assemble import Job, assemble
from moeframe.train.data import BatchPlan
from moeframe.train.trainer import Computed, Trainer
from moeframe.verify.formulas import RouterWatch, bias_findings, load_findings, loss_findings, sequences_of
from moeframe.verify.records import Array, FormulaFinding, RankNumbers, Sequences, StepNumbers
from moeframe.verify.reference.schedule import ReferenceSchedule
from moeframe.verify.shrink import STEPS

__all__ = ["Jobs", "provoke", "rehearse"]

_BIAS = "e_score_correction_bias"
_LOSSES = ("ce_loss", "mtp_loss", "balance_loss", "loss")


class Jobs:
    """How jobs are made. Every job of a verification comes from here, the reference too.

    A subclass may hand out jobs with a fault, to see that it is found; it must be picklable.
    """

    def open(self, recipe: Recipe, plugins: AbstractSequence[str]) -> Job:
        """Assemble a recipe on this rank."""
        return assemble(recipe, plugins=plugins)

    def trainer(self, job: Job) -> Trainer:
        """Return the trainer of a job."""
        return Trainer(job, progress=False)


class _Delegate:
    """Another object, to be watched: what is not defined here is the other's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _WatchedSharding(_Delegate):
    """Keeps the gradients from before and after clipping."""

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        self.gradients = _arrays(self._inner.full_gradients())
        norm: torch.Tensor = self._inner.clip_(max_norm)
        self.clipped = _arrays(self._inner.full_gradients())
        return norm


class _WatchedModel(_Delegate):
    """Keeps the global loads that the biases are updated with."""

    def update_expert_bias(self, tokens_per_expert: torch.Tensor) -> None:
        self.loads = tokens_per_expert.cpu().numpy().copy()
        self._inner.update_expert_bias(tokens_per_expert)


def rehearse(recipe: Recipe, plugins: AbstractSequence[str], jobs: Jobs | None = None) -> RankNumbers:
    """Run the steps of a recipe on this rank and return what they left behind.

    Correction biases start between the scores of the routers and below, so that biased scores have both signs.
    """
    jobs = jobs or Jobs()
    with jobs.open(recipe, plugins) as job:
        provoke(job)
        watch = RouterWatch(job.model)
        sharded, model = _WatchedSharding(job.sharded), _WatchedModel(job.model)
        job.sharded, job.model = cast("ShardedModel", sharded), cast("DeepSeekV3", model)
        trainer = jobs.trainer(job)
        steps: list[StepNumbers] = []
        findings: list[FormulaFinding] = []
        sequences: Sequences | None = None
        for step in range(STEPS):
            before = _biases(model)
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            metrics = trainer.apply_gradients(step, computed)
            tokens, balance_B = watch.take()
            numbers = StepNumbers(
                losses={name: float(metrics[name]) for name in _LOSSES},
                loads=model.loads,
                own_loads={f"{name}.{_BIAS}": tokens_E for name, tokens_E in tokens.items()},
                grad_norm=float(metrics["grad_norm"]),
                gradients=sharded.gradients,
                clipped=sharded.clipped,
                biases=_biases(model),
                parameters=_arrays(sharded.full_parameters()),
            )
            steps.append(numbers)
            if isinstance(job.schedule, ReferenceSchedule):
                found = sequences_of(job.schedule.seen, balance_B)
                sequences = sequences or found
                if not watch.findings:  # the rest follows from the routing
                    findings += _broken_formulas(job, numbers, found, before)
        return _of_rank(job, model, steps, (*watch.findings.values(), *findings), sequences)


def provoke(job: Job) -> None:
    """Set the correction biases of a job, by their names, in place: negative, and unequal."""
    config = job.recipe.model
    typical = 0.5 if config.scoring_func == "sigmoid" else 1.0 / config.n_routed_experts
    for name, buffer in job.model.named_buffers():
        if name.endswith(_BIAS):
            generator = numpy.random.default_rng(zlib.crc32(name.encode()))
            values_E = -typical * generator.uniform(0.8, 1.2, len(buffer))
            buffer.copy_(torch.from_numpy(values_E))


def _broken_formulas(
    job: Job, numbers: StepNumbers, sequences: Sequences, before: Mapping[str, Array]
) -> list[FormulaFinding]:
    """Compare one step of the reference with the formulas."""
    config = job.recipe.model
    assert isinstance(job.schedule, ReferenceSchedule)
    loads = numbers.own_loads
    expected_LE = numpy.stack([*loads.values()]) if loads else numpy.zeros_like(numbers.loads)
    speed = config.bias_update_speed if config.topk_method == "noaux_tc" else 0.0
    return [
        *load_findings(numbers.loads, expected_LE),
        *loss_findings(sequences, numbers.losses, sum(loss for _, _, loss in job.schedule.seen), config),
        *bias_findings(before, numbers.biases, loads, speed),
    ]


def _of_rank(
    job: Job,
    model: Any,
    steps: AbstractSequence[StepNumbers],
    findings: AbstractSequence[FormulaFinding],
    sequences: Sequences | None,
) -> RankNumbers:
    train, meshes = job.recipe.train, job.meshes
    batches = BatchPlan(
        global_batch_size=train.global_batch_size,
        micro_batch_size=train.micro_batch_size,
        data_rank=meshes.rank("dp"),
        data_ranks=meshes.size("dp"),
    )
    experts = frozenset(name for name in steps[0].parameters if ".routed." in name)
    return RankNumbers(
        rank=job.world.rank,
        data_rank=meshes.rank("dp"),
        pipeline_rank=meshes.rank("pp"),
        first_expert=model.first_expert,
        experts=experts,
        own_sequences=tuple(tuple(positions) for positions in batches.positions(0)),
        steps=tuple(steps),
        formulas=tuple(findings),
        sequences=sequences,
    )


def _biases(model: Any) -> dict[str, Array]:
    buffers = cast("nn.Module", model).named_buffers()
    return {name: buffer.detach().cpu().numpy().copy() for name, buffer in buffers if name.endswith(_BIAS)}


def _arrays(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}
