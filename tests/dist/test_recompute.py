"""Recomputing activations changes no number, in any layout, and costs what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.protocols.dispatcher import Dispatcher
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"

SMALL = (
    "train.precision=float64",
    "train.steps=2",
    "train.seq_len=8",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "model.hidden_size=16",
    "model.intermediate_size=24",
    "model.moe_intermediate_size=12",
    "model.num_hidden_layers=4",
    "model.q_lora_rank=8",
    "model.kv_lora_rank=8",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "data.name=synthetic",
    "launch.device=cpu",
)

MODES = {
    "full": ("train.recompute=full",),
    "attend": ("train.recompute=selective", "train.recompute_phases=[attend]"),
    "experts": ("train.recompute=selective", "train.recompute_phases=[experts]"),
    "both": ("train.recompute=selective",),
}


class Calls:
    """Counts what a dispatcher is asked to do in the forward and the backward of a job."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.counts = {"layout": 0, "dispatch": 0, "combine": 0}
        for name in self.counts:
            setattr(dispatcher, name, self._counted(name, getattr(dispatcher, name)))

    def _counted(self, name, method):
        def call(*args):
            self.counts[name] += 1
            return method(*args)

        return call


def two_steps(overrides: tuple[str, ...], modes: dict[str, tuple[str, ...]]) -> dict[str, tuple[dict, dict]]:
    """Return numbers and calls of two optimizer steps, by mode."""
    found = {}
    for mode, more in {"none": (), **modes}.items():
        with assemble(load_recipe(RECIPE, [*SMALL, *overrides, *more])) as job:
            calls = Calls(job.dispatcher)
            found[mode] = (_numbers(job), calls.counts)
    return found


def _numbers(job: Job) -> dict[str, torch.Tensor]:
    trainer = Trainer(job, progress=False)
    numbers: dict[str, torch.Tensor] = {}
    for step in range(2):
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
        assert error <= 1e-12 * scale, f"{name}: off by {error} of {scale}"


def assert_calls(found: dict[str, tuple[dict, dict]]) -> None:
    """Layouts and combines are made once; full recompute dispatches once more for each micro-batch and layer."""
    plain = found["none"][1]
    assert plain["layout"] == plain["dispatch"] == plain["combine"] > 0
    for mode, (_, calls) in found.items():
        again = 2 if mode == "full" else 1
        assert calls == {**plain, "dispatch": again * plain["dispatch"]}, mode


WHOLE = ("sharding.options.reshard_after_forward=false",)

LAYOUTS = [
    (2, 2, "alltoall", "replicate", ()),
    (2, 2, "allgather", "zero1", ()),
    (2, 1, "local", "fsdp2", WHOLE),
    pytest.param(4, 2, "alltoall", "fsdp2", (), marks=pytest.mark.sweep),
    pytest.param(4, 2, "allgather", "hsdp", ("parallel.dp_replicate=2",), marks=pytest.mark.sweep),
]


@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "more"), LAYOUTS)
def test_recompute_changes_no_number_c16(ranks, world, ep, dispatcher, sharding, more) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
        "model.num_hidden_layers=2",
        *more,
    )
    modes = MODES if world == 2 else {mode: MODES[mode] for mode in ("full", "both")}
    for found in ranks.run(two_steps, overrides, modes, world_size=world, timeout=200):
        for mode in modes:
            assert_equal_numbers(found[mode][0], found["none"][0])
        assert_calls(found)


PIPELINES = [
    ("1f1b", "fsdp2", ()),
    ("interleaved_1f1b", "replicate", ()),
    ("zero_bubble", "fsdp2", WHOLE),
    ("zbv", "zero1", ()),
    ("dualpipev", "fsdp2", WHOLE),
]


@pytest.mark.parametrize(("schedule", "sharding", "more"), PIPELINES)
def test_a_pipeline_recomputes_once_for_each_micro_batch(ranks, schedule, sharding, more) -> None:
    """Also where the backward is split into several calls: torch's own checkpoint would recompute in each."""
    overrides = (
        "launch.nproc_per_node=4",
        "parallel.pp=2",
        "parallel.ep=2",
        f"schedule.name={schedule}",
        f"sharding.name={sharding}",
        "dispatcher.name=alltoall",
        *more,
    )
    modes = {mode: MODES[mode] for mode in ("full", "both")}
    for found in ranks.run(two_steps, overrides, modes, world_size=4, timeout=200):
        for mode in modes:
            assert_equal_numbers(found[mode][0], found["none"][0])
        assert_calls(found)
