"""`overlap_1f1b` computes what `accumulate` computes, whatever dispatcher and sharding, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"
PLUGINS = ("moeframe_overlap.plugin",)

SMALL = (
    "train.precision=float64",
    "train.steps=2",
    "train.seq_len=8",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "model.moe_intermediate_size=12",
    "model.num_hidden_layers=3",
    "model.q_lora_rank=8",
    "model.kv_lora_rank=8",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "data.name=synthetic",
    "launch.device=cpu",
)

WHOLE = ("sharding.options.reshard_after_forward=false",)
OVERLAP = ("schedule.name=overlap_1f1b",)


def steps(overrides: tuple[str, ...], number: int = 2) -> dict[str, torch.Tensor]:
    """Return the numbers of some optimizer steps, gradients included, by name."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides]), plugins=PLUGINS) as job:
        return _numbers(job, number)


def _numbers(job: Job, number: int) -> dict[str, torch.Tensor]:
    trainer = Trainer(job, progress=False)
    numbers: dict[str, torch.Tensor] = {}
    for step in range(number):
        computed = trainer.compute_gradients(step)
        assert isinstance(computed, Computed)
        numbers |= {f"step {step}: {name}": value for name, value in job.sharded.full_gradients().items()}
        metrics = trainer.apply_gradients(step, computed)
        for key in ("loss", "balance_loss", "mtp_loss", "grad_norm", "max_violation"):
            numbers[f"step {step}: {key}"] = torch.tensor(metrics[key], dtype=torch.float64)
    numbers |= {name: buffer.clone() for name, buffer in job.model.named_buffers() if "bias" in name}
    return numbers


def assert_equal_numbers(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    assert any("bias" in name for name in wanted)
    for name, value in wanted.items():
        scale = value.abs().max().item() if value.numel() else 0.0
        error = (found[name] - value).abs().max().item() if value.numel() else 0.0
        assert error <= 1e-9 * scale, f"{name}: off by {error} of {scale}"


LAYOUTS = [
    (1, 1, "local", "replicate", ()),
    (2, 2, "alltoall", "replicate", ()),
    (2, 2, "allgather", "zero1", ()),
    (2, 1, "local", "fsdp2", WHOLE),
    (2, 2, "alltoall", "fsdp2", WHOLE),
    (4, 2, "allgather", "hsdp", (*WHOLE, "parallel.dp_replicate=2")),
]


@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "more"), LAYOUTS)
def test_it_gives_the_numbers_of_accumulate(ranks, world, ep, dispatcher, sharding, more) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
        *more,
    )
    wanted = ranks.run(steps, overrides, world_size=world)
    found = ranks.run(steps, (*overrides, *OVERLAP), world_size=world)
    for mine, theirs in zip(found, wanted, strict=True):
        assert_equal_numbers(mine, theirs)
