"""Poisoned memory changes no bit of a right job, and names the phase that reads what nobody wrote (C26)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.debug.poison import poisoned
from moeframe.errors import ContractError
from moeframe.train.assemble import Job, assemble
from moeframe.train.trainer import Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"

SMALL = (
    "train.steps=3",
    "train.seq_len=8",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "model.hidden_size=16",
    "model.intermediate_size=16",
    "model.moe_intermediate_size=16",
    "model.num_hidden_layers=2",
    "model.q_lora_rank=8",
    "model.kv_lora_rank=8",
    "data.name=synthetic",
    "launch.device=cpu",
)


def three_steps(overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return loss, norm and all parameters after three steps, without and with poison."""
    found = []
    for poison in ("false", "true"):
        with assemble(load_recipe(RECIPE, [*SMALL, *overrides, f"debug.poison={poison}"])) as job:
            trainer = Trainer(job, progress=False)
            metrics = [trainer.step(step) for step in range(3)]
            numbers: dict[str, Any] = dict(job.sharded.full_parameters())
            numbers |= {f"{key} {one['step']}": one[key] for one in metrics for key in ("loss", "grad_norm")}
            found.append(numbers)
    assert not torch.are_deterministic_algorithms_enabled()
    return found


LAYOUTS = [
    (1, 1, "local", "replicate", ()),
    (2, 2, "alltoall", "fsdp2", ()),
    (2, 2, "allgather", "replicate", ("train.recompute=full",)),
    (2, 1, "local", "zero1", ("model.capacity_factor=0.5",)),
    (4, 2, "allgather", "hsdp", ("parallel.dp_replicate=2",)),
    (4, 2, "alltoall", "replicate", ("parallel.pp=2", "schedule.name=1f1b")),
]


@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "more"), LAYOUTS)
def test_poison_changes_no_bit_c26(ranks, world, ep, dispatcher, sharding, more) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
        *more,
    )
    for plain, with_poison in ranks.run(three_steps, overrides, world_size=world, timeout=200):
        assert plain.keys() == with_poison.keys()
        for key, value in plain.items():
            same = (
                torch.equal(with_poison[key], value) if isinstance(value, torch.Tensor) else with_poison[key] == value
            )
            assert same, key


class _Last(torch.autograd.Function):
    """The identity, but in one direction the last row comes from a buffer that nobody wrote."""

    @staticmethod
    def forward(ctx, x, where):
        ctx.where = where
        return _unwritten_last_row(x) if where == "forward" else x * 1

    @staticmethod
    def backward(ctx, grad):
        return (_unwritten_last_row(grad) if ctx.where == "backward" else grad), None


def _unwritten_last_row(x):
    buffer = torch.empty_like(x)
    buffer[:-1] = x[:-1]
    return buffer


def break_dispatch(job: Job, where: str) -> None:
    """Have the dispatcher hand on a row that it has not written."""
    dispatch = job.dispatcher.dispatch

    def broken(x_TD, gates_TK, layout):
        if where == "forward":
            dispatched = dispatch(x_TD, gates_TK, layout)
            return type(dispatched)(**{**vars(dispatched), "rows_RD": _Last.apply(dispatched.rows_RD, where)})
        return dispatch(_Last.apply(x_TD, where), gates_TK, layout)

    job.dispatcher.dispatch = broken


def break_combine(job: Job, where: str) -> None:
    combine = job.dispatcher.combine
    job.dispatcher.combine = lambda rows_RD, dispatched: _Last.apply(combine(rows_RD, dispatched), where)


def break_experts(job: Job, where: str) -> None:
    routed = job.model.blocks["1"].experts.routed
    forward = routed.forward
    routed.forward = lambda *inputs: _Last.apply(forward(*inputs), where)


BREAKERS = {"dispatch": break_dispatch, "combine": break_combine, "experts": break_experts}


def first_step(phase: str, where: str) -> str:
    overrides = ("sharding.name=replicate", "dispatcher.name=local", "parallel.ep=1", "launch.nproc_per_node=1")
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides, "debug.poison=true"])) as job:
        BREAKERS[phase](job, where)
        with pytest.raises(ContractError) as caught:
            Trainer(job, progress=False).step(0)
        return str(caught.value)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("phase", list(BREAKERS))
def test_a_phase_that_reads_an_unwritten_row_is_named_in_the_first_step(ranks, phase, where) -> None:
    (text,) = ranks.run(first_step, phase, where, world_size=1)
    assert f"{phase} ({where})" in text
    assert "step 1" in text
    assert "NaN" in text


def gradients_of_a_broken_head() -> str:
    overrides = ("sharding.name=replicate", "dispatcher.name=local", "parallel.ep=1", "launch.nproc_per_node=1")
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides, "debug.poison=true"])) as job:
        parameter = job.model.head.weight
        parameter.register_hook(_unwritten_last_row)
        with pytest.raises(ContractError) as caught:
            Trainer(job, progress=False).step(0)
        return str(caught.value)


def test_nan_outside_the_phases_is_found_in_the_gradients(ranks) -> None:
    (text,) = ranks.run(gradients_of_a_broken_head, world_size=1)
    assert "head.weight" in text


def test_what_torch_allocates_unwritten_is_filled() -> None:
    with poisoned():
        tensors = (
            torch.empty(3),
            torch.empty_like(torch.ones(3)),
            torch.ones(1).new_empty(3),
            torch.empty_strided((3,), (1,)),
            torch.empty_permuted((3,), (0,)),
            torch.ones(1).resize_(3)[1:],
        )
        assert all(bool(tensor.isnan().all()) for tensor in tensors)
        assert torch.empty(1, dtype=torch.int64).item() == torch.iinfo(torch.int64).max
    assert not torch.are_deterministic_algorithms_enabled()
