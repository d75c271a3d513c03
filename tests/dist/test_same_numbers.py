"""Every layout computes what one process computes: float64, the local dispatcher as the oracle (design, section 6)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from moeframe.config.load import load_recipe
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"

SMALL = (
    "train.precision=float64",
    "train.steps=2",
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.moe_intermediate_size=24",
    "model.num_hidden_layers=2",
    "model.q_lora_rank=16",
    "model.kv_lora_rank=16",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "optimizer.clip_grad_norm=0.5",
    "launch.device=cpu",
)

LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]


@dataclass
class Numbers:
    """What two optimizer steps left behind, by global name; experts by their global id."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    biases: dict[str, torch.Tensor]


def whole(job: Job, local: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the experts of all ep ranks together."""
    group, size = job.meshes.group("ep"), job.meshes.size("ep")
    found = {}
    for name, tensor in local.items():
        parts = [tensor]
        if size > 1 and ".routed." in name:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous(), group=group)
        found[name] = torch.cat(parts) if len(parts) > 1 else tensor
    return found


def two_steps(overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        losses, norms = [], []
        gradients: dict[str, torch.Tensor] = {}
        for step in range(2):
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            gradients |= {f"step {step}: {k}": v for k, v in whole(job, job.sharded.full_gradients()).items()}
            metrics: dict[str, Any] = trainer.apply_gradients(step, computed)
            losses += [metrics[key] for key in ("loss", "ce_loss", "mtp_loss", "balance_loss", "max_violation")]
            norms.append(metrics["grad_norm"])
        biases = {name: buffer.clone() for name, buffer in job.model.named_buffers() if "bias" in name}
        parameters = whole(job, job.sharded.full_parameters())
        return Numbers(losses=losses, norms=norms, gradients=gradients, parameters=parameters, biases=biases)


def assert_same(numbers: Numbers, oracle: Numbers) -> None:
    assert numbers.losses == pytest.approx(oracle.losses, rel=1e-9)
    assert numbers.norms == pytest.approx(oracle.norms, rel=1e-9)
    for kind in ("gradients", "parameters", "biases"):
        mine, theirs = getattr(numbers, kind), getattr(oracle, kind)
        assert mine.keys() == theirs.keys()
        for name, expected in theirs.items():
            error = (mine[name] - expected).abs().max().item()
            scale = expected.abs().max().item()
            ratio = (mine[name].norm() / expected.norm()).item()
            assert error <= 1e-9 * max(scale, 1e-12), f"{kind} {name}: off by {error} of {scale}, ratio {ratio:.6f}"


@pytest.fixture(scope="module")
def oracle(ranks) -> Numbers:
    numbers = ranks.run(two_steps, (), world_size=1)[0]
    assert len(numbers.biases) == 2
    assert all(bias.abs().sum() > 0 for bias in numbers.biases.values())
    assert all(gradient.abs().sum() > 0 for gradient in numbers.gradients.values())
    return numbers


COMBINATIONS = [
    (world, ep, sharding, dispatcher)
    for (world, ep), sharding, dispatcher in itertools.product(
        LAYOUTS, ("replicate", "fsdp2"), ("local", "allgather", "alltoall")
    )
    if dispatcher != "local" or ep == 1
]


@pytest.mark.parametrize(("world", "ep", "sharding", "dispatcher"), COMBINATIONS)
def test_every_layout_gives_the_numbers_of_one_process(
    ranks, oracle: Numbers, world: int, ep: int, sharding: str, dispatcher: str
) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
    )
    for numbers in ranks.run(two_steps, overrides, world_size=world):
        assert_same(numbers, oracle)


@pytest.mark.parametrize("micro", [1, 2, 4])
def test_the_micro_batch_size_changes_no_number(ranks, oracle: Numbers, micro: int) -> None:
    overrides = (
        "launch.nproc_per_node=2",
        "parallel.ep=2",
        "sharding.name=fsdp2",
        "dispatcher.name=alltoall",
        f"train.micro_batch_size={micro}",
    )
    for numbers in ranks.run(two_steps, overrides, world_size=2):
        assert_same(numbers, oracle)
