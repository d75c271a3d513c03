"""`overlap_1f1b` computes what one process computes with `accumulate`, in every layout, and leaves nothing behind."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from moeframe_overlap.flight import Flight
from torch.utils._python_dispatch import TorchDispatchMode

from moeframe import trace
from moeframe.config.load import load_recipe
from moeframe.model.deepseek_v3 import ModelStage
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"

SMALL = (
    "train.precision=float64",
    "train.steps=3",
    "train.seq_len=8",
    "train.global_batch_size=20",
    "train.micro_batch_size=2",
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "model.moe_intermediate_size=12",
    "model.num_hidden_layers=2",
    "model.q_lora_rank=8",
    "model.kv_lora_rank=8",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "data.name=synthetic",
    "launch.device=cpu",
)
"""A dense layer, a MoE layer with a shared expert, and one as MTP module."""
WHOLE = ("sharding.options.reshard_after_forward=false",)
OVERLAP = ("schedule.name=overlap_1f1b",)


def whole(job: Job, local: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the experts of all ep ranks together."""
    group, size = job.meshes.group("ep"), job.meshes.size("ep")
    found = {}
    for name, tensor in local.items():
        parts = [tensor]
        if size > 1 and ".routed." in name:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous(), group=group)
        found[name] = torch.cat(parts)
    return found


def steps(overrides: tuple[str, ...], number: int = 2) -> dict[str, torch.Tensor]:
    """Return the numbers of some optimizer steps, gradients included, by name; experts by their global number."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        numbers: dict[str, torch.Tensor] = {}
        for step in range(number):
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            gradients = whole(job, job.sharded.full_gradients())
            numbers |= {f"step {step}: {name}": value.cpu() for name, value in gradients.items()}
            metrics = trainer.apply_gradients(step, computed)
            for key in ("loss", "balance_loss", "mtp_loss", "grad_norm", "max_violation"):
                numbers[f"step {step}: {key}"] = torch.tensor(metrics[key], dtype=torch.float64)
        numbers |= {name: buffer.cpu() for name, buffer in job.model.named_buffers() if "bias" in name}
        return numbers


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], tolerance: float = 1e-9) -> None:
    assert found.keys() == wanted.keys()
    assert any("bias" in name for name in wanted)
    for name, value in wanted.items():
        scale = value.abs().max().item()
        error = (found[name] - value).abs().max().item()
        assert error <= tolerance * scale, f"{name}: off by {error} of {scale}"


@pytest.fixture(scope="module")
def oracle(ranks) -> dict[str, torch.Tensor]:
    numbers = ranks.run(steps, (), world_size=1)[0]
    assert all(value.abs().sum() > 0 for name, value in numbers.items() if name.startswith("step"))
    return numbers


def layout(world: int, ep: int, dispatcher: str, sharding: str, *more: str) -> tuple[str, ...]:
    replicas = ("parallel.dp_replicate=2",) if sharding == "hsdp" else ()
    kept = WHOLE if sharding in ("fsdp2", "hsdp") else ()
    names = (f"dispatcher.name={dispatcher}", f"sharding.name={sharding}")
    return (f"launch.nproc_per_node={world}", f"parallel.ep={ep}", *names, *kept, *replicas, *more, *OVERLAP)


SELECTIVE = ("train.recompute=selective",)
COVERING = [
    (1, 1, "local", "replicate", ()),
    (2, 2, "alltoall", "zero1", ("train.micro_batch_size=10",)),
    (2, 2, "allgather", "replicate", ("train.micro_batch_size=5", *SELECTIVE)),
    (2, 2, "alltoall", "fsdp2", ()),
    (4, 2, "allgather", "hsdp", ("train.micro_batch_size=1", *SELECTIVE)),
]
"""One micro-batch a rank and step, two, and five; recomputing both phases or none."""


@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "more"), COVERING)
def test_it_gives_the_numbers_of_one_process(ranks, oracle, world, ep, dispatcher, sharding, more) -> None:
    for numbers in ranks.run(steps, layout(world, ep, dispatcher, sharding, *more), world_size=world):
        assert_same(numbers, oracle)


SWEEP = [
    (world, ep, dispatcher, sharding, phases)
    for (world, ep), dispatcher, sharding, phases in itertools.product(
        [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)],
        ("local", "allgather", "alltoall"),
        ("replicate", "zero1", "fsdp2", "hsdp"),
        ("none", "attend", "experts"),
    )
    if (dispatcher != "local" or ep == 1) and (sharding != "hsdp" or world // ep == 2)
]


@pytest.mark.sweep
@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "phases"), SWEEP)
def test_every_dispatcher_and_sharding(ranks, oracle, world, ep, dispatcher, sharding, phases) -> None:
    more = () if phases == "none" else (*SELECTIVE, f"train.recompute_phases=[{phases}]")
    more = (*more, "train.micro_batch_size=1")
    for numbers in ranks.run(steps, layout(world, ep, dispatcher, sharding, *more), world_size=world):
        assert_same(numbers, oracle)


def test_freed_storages_full_of_nan_change_no_number_in_three_steps(ranks) -> None:
    plain = layout(2, 2, "alltoall", "replicate")
    wanted = ranks.run(steps, plain, 3, world_size=2)
    found = ranks.run(steps, (*plain, "debug.poison=true"), 3, world_size=2)
    for mine, theirs in zip(found, wanted, strict=True):
        assert_same(mine, theirs, tolerance=1e-12)


def collectives(overrides: tuple[str, ...]) -> list[str]:
    """Return what this rank issued in the schedule's step, in order: operation and place."""
    with assemble(load_recipe(RECIPE, [*SMALL, "debug.ledger=true", *overrides])) as job:
        assert job.ledger is not None
        computed = Trainer(job, progress=False).compute_gradients(0)
        assert isinstance(computed, Computed)
        return [
            f"{entry.op} {entry.site.place.removeprefix('step 1, ')}"
            for entry in job.ledger.entries
            if "micro-batch" in entry.site.place
        ]


def expected_collectives() -> Iterator[str]:
    """Two micro-batches through a dense layer 0, MoE layer 1 and MTP layer 2; layer j meets layer 2 - j."""

    def forward(micro_batch: int, layer: int) -> list[str]:
        place = f"micro-batch {micro_batch}, layer {layer}"
        return [f"all_to_all {place}, {phase} (forward)" for phase in ("attend", "dispatch", "combine")]

    def backward(micro_batch: int, layer: int) -> list[str]:
        place = f"micro-batch {micro_batch}, layer {layer}"
        return [f"all_to_all {place}, {phase} (backward)" for phase in ("combine", "dispatch")]

    yield from [*forward(0, 1), *forward(0, 2)]
    yield from backward(0, 2)  # beside layer 0, which is dense
    (counts, sent, home), (back, gone) = forward(1, 1), backward(0, 1)
    yield from [back, counts, sent, gone, home]
    yield from forward(1, 2)  # beside layer 0
    yield from [*backward(1, 2), *backward(1, 1)]


def test_all_ranks_issue_the_collectives_of_the_plan_in_its_order(ranks) -> None:
    overrides = layout(2, 2, "alltoall", "replicate", "train.micro_batch_size=5")
    found = ranks.run(collectives, overrides, world_size=2)
    assert found[0] == found[1] == [*expected_collectives()]


class Births(TorchDispatchMode):
    """Notes every tensor that operators make, by the micro-batch that runs."""

    def __init__(self) -> None:
        super().__init__()
        self.born: dict[int, list[weakref.ref[torch.Tensor]]] = {}

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.born.setdefault(trace.current().micro_batch, []).append(weakref.ref(tensor))
        return out


def living(job: Job, born: list[weakref.ref[torch.Tensor]]) -> list[str]:
    """Return which tensors live on but for gradients of parameters and sums over micro-batches."""
    stage = job.stages[0]
    assert isinstance(stage, ModelStage)
    lasting = [parameter.grad for parameter in job.model.parameters() if parameter.grad is not None]
    lasting += [stage._sums, *(each for counter in stage._model._counters for each in counter._sums or ())]
    allowed = {tensor.untyped_storage().data_ptr() for tensor in lasting if tensor is not None}
    found = [tensor for one in born if (tensor := one()) is not None]
    left = [tensor for tensor in found if tensor.untyped_storage().data_ptr() not in allowed and tensor.numel() > 1]
    return [f"{tuple(tensor.shape)} {tensor.grad_fn}" for tensor in left]


def leftovers(overrides: tuple[str, ...]) -> tuple[dict[int, int], dict[int, list[str]]]:
    """Return how many tensors each micro-batch made, and which of them live when its backward is done."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        births, left = Births(), {}
        backward = Flight.backward

        def noticing(self: Flight, place: int, *, split: bool) -> None:
            backward(self, place, split=split)
            if place == 0 and self._number in births.born:
                left[self._number] = living(job, births.born[self._number])

        Flight.backward = noticing  # type: ignore[method-assign]
        try:
            trainer = Trainer(job, progress=False)
            assert isinstance(trainer.compute_gradients(0), Computed)  # fills caches, such as rotary tables
            left.clear()
            with births:
                assert isinstance(trainer.compute_gradients(0), Computed)
        finally:
            Flight.backward = backward  # type: ignore[method-assign]
        return {number: len(refs) for number, refs in births.born.items()}, left


@pytest.mark.parametrize("more", [(), SELECTIVE])
def test_no_tensor_of_a_micro_batch_is_left_when_its_backward_is_done(ranks, more) -> None:
    born, left = ranks.run(
        leftovers, layout(1, 1, "local", "replicate", "train.micro_batch_size=5", *more), world_size=1
    )[0]
    assert all(born[number] > 500 for number in range(4))
    assert left == {0: [], 1: [], 2: [], 3: []}
