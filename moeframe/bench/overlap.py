"""Measures a schedule that runs phases beside each other against one that does not, in one process group."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, record_function

from moeframe import trace
from moeframe.bench.baseline import plain_schedule
from moeframe.bench.hiding import hiding
from moeframe.bench.kernels import MARK, Kernel, SpanLog, read_kernels
from moeframe.bench.slots import stretch
from moeframe.bench.slowing import slow_down
from moeframe.config.load import read_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.protocols.schedule import Schedule
from moeframe.train.assemble import Job, assemble, schedule_context
from moeframe.train.trainer import Computed, Trainer

__all__ = ["Settings", "measure"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure, as it travels to the ranks. `out`: the file that rank 0 writes."""

    recipe: str
    overrides: tuple[str, ...]
    plugins: tuple[str, ...]
    rounds: int
    slow_us: float
    out: str


class _Subject:
    """A schedule under measurement."""

    def __init__(self, name: str, schedule: Schedule) -> None:
        self.name = name
        self.schedule = schedule
        self.forget()

    def forget(self) -> None:
        """Forget what was measured."""
        self.steps_ms: list[float] = []
        self.peak_bytes = 0
        self.reserved_bytes = 0
        self.kernels: tuple[Kernel, ...] = ()


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Measure on this rank; yield the result as data, once more with what was slowed. Collective.

    Rounds alternate between the schedules, so that a change of the machine's clock meets all of them. A step is
    forward, backward and the sum of gradients; the optimizer, the same for all, does not run. Times and memory are the
    worst rank's, hidden communication is this rank's.
    """
    loaded = read_recipe(Path(settings.recipe), settings.overrides)
    with assemble(loaded, plugins=settings.plugins) as job:
        device = job.meshes.device
        trainer = Trainer(job, progress=False)
        subjects = [*_subjects(job)]
        layer_bytes = _layer_bytes(job, trainer, subjects[0])
        for subject in subjects[1:]:
            _step(job, trainer, subject.schedule)
        composition, train = job.composition, job.recipe.train
        data: dict[str, Any] = {
            "name": job.recipe.name,
            "overrides": settings.overrides,
            "dispatcher": composition.dispatcher.offer.name,
            "sharding": composition.sharding.offer.name,
            "world_size": job.world.world_size,
            "device": torch.cuda.get_device_name(device),
            "torch": torch.__version__,
            "micro_batches": composition.num_micro_batches,
            "tokens": train.micro_batch_size * train.seq_len,
            "layer_bytes": layer_bytes,
            "passes": [_pass(job, trainer, subjects, settings.rounds, slow_us=0.0)],
        }
        yield data
        if settings.slow_us:
            slow_down(job.model, settings.slow_us, device)
            _step(job, trainer, subjects[0].schedule)
            data["passes"].append(_pass(job, trainer, subjects[:2], settings.rounds, slow_us=settings.slow_us))
            yield data


def _pass(job: Job, trainer: Trainer, subjects: Sequence[_Subject], rounds: int, *, slow_us: float) -> dict[str, Any]:
    """Time all in turn, profile the two to compare, once slowed only the second; return it as data."""
    for subject in subjects:
        subject.forget()
    for _ in range(rounds):
        for subject in subjects:
            _timed(job, trainer, subject)
    for subject in subjects[1:2] if slow_us else subjects[:2]:
        subject.kernels = _profiled(job, trainer, subject)
    return {"slow_us": slow_us, "schedules": [_data(subject, job) for subject in subjects]}


def _subjects(job: Job) -> Iterator[_Subject]:
    """Yield the schedule to compare with, the recipe's, and the recipe's when it frees nothing between phases."""
    context, own = schedule_context(job.composition, job.meshes), job.composition.schedule
    plain = plain_schedule(Catalog(job.host), job.composition.precision)
    yield _Subject(plain.name, plain.build(plain.options(), context))
    yield _Subject(own.offer.name, own.build(context))
    yield _Subject(f"{own.offer.name}, nothing freed", own.build(replace(context, freeing="keep")))


def _step(job: Job, trainer: Trainer, schedule: Schedule) -> None:
    job.schedule = schedule
    computed = trainer.compute_gradients(0)
    assert isinstance(computed, Computed)
    job.optimizer.zero_grad(set_to_none=True)
    job.model.take_counters()


def _timed(job: Job, trainer: Trainer, subject: _Subject) -> None:
    device = job.meshes.device
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    if dist.is_initialized():
        dist.barrier()
    begun = time.perf_counter()
    _step(job, trainer, subject.schedule)
    torch.cuda.synchronize(device)
    subject.steps_ms.append((time.perf_counter() - begun) * 1e3)
    if job.world.rank == 0:
        sys.stderr.write(f"{subject.name}: {subject.steps_ms[-1]:.1f} ms\n")
    subject.peak_bytes = max(subject.peak_bytes, torch.cuda.max_memory_allocated(device) - before)
    subject.reserved_bytes = max(subject.reserved_bytes, torch.cuda.max_memory_reserved(device))


class _LayerMemory:
    """A listener that notes how much more memory is in use after a layer's forward than before it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before: dict[int, int] = {}
        self.most = 0

    def enter(self, place: trace.Place) -> None:
        if place.direction == "forward" and place.phase == "attend":
            self._before.setdefault(place.layer, torch.cuda.memory_allocated(self._device))

    def leave(self, place: trace.Place) -> None:
        if place.direction == "forward" and place.phase == "combine" and place.layer in self._before:
            grown = torch.cuda.memory_allocated(self._device) - self._before.pop(place.layer)
            self.most = max(self.most, grown)


def _layer_bytes(job: Job, trainer: Trainer, subject: _Subject) -> int:
    memory = _LayerMemory(job.meshes.device)
    with trace.listen(memory):
        _step(job, trainer, subject.schedule)
    return memory.most


def _profiled(job: Job, trainer: Trainer, subject: _Subject) -> tuple[Kernel, ...]:
    spans = SpanLog()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for _ in range(3):  # the last one begins without delay
            with record_function(MARK):
                spans.mark()
        with trace.listen(spans):
            _step(job, trainer, subject.schedule)
        torch.cuda.synchronize(job.meshes.device)
    if job.world.rank:
        return ()  # rank 0 tells
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(file))
        return tuple(read_kernels(json.loads(file.read_text()), spans))


def _data(subject: _Subject, job: Job) -> dict[str, Any]:
    count = job.composition.num_micro_batches
    numbers = [*subject.steps_ms, subject.peak_bytes, subject.reserved_bytes]
    worst = torch.tensor(numbers, dtype=torch.float64, device=job.meshes.device)
    if dist.is_initialized():
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    *steps_ms, peak, reserved = worst.tolist()
    data = {
        "name": subject.name,
        "steps_ms": [round(step, 3) for step in steps_ms],
        "step_ms": round(statistics.median(steps_ms), 3),
        "peak_bytes": int(peak),
        "reserved_bytes": int(reserved),
    }
    if subject.kernels:
        data["communication"] = hiding(subject.kernels, count).to_json()
        data["slots"] = [slot.to_json() for slot in stretch(subject.kernels, count // 2)]
    return data
