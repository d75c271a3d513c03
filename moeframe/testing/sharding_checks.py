"""What each check of the sharding kit does on one rank. Failures are AssertionErrors that name what differs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import DtypeName
from moeframe.testing.sharding_bench import Bench, Subject, learning_rate, require
from moeframe.testing.sharding_causes import explain_norm, worst
from moeframe.testing.sharding_reference import SETTINGS, Batches, norm_of

__all__ = [
    "check_gradients",
    "check_load",
    "check_norm_and_clipping",
    "check_phases",
    "check_save",
    "check_stages",
    "check_steps",
    "check_units",
    "check_whole_parameters",
]

_OTHER_VALUES = 99
"""Seed of a model whose values a load must replace."""


def check_gradients(
    subject: Subject,
    degrees: Degrees,
    *,
    micro_batches: int = 3,
    num_experts: int | None = None,
    precision: DtypeName | None = None,
) -> None:
    """Gradients are sums over the tokens of all ranks; zeros where no micro-batch used a parameter."""
    batches = Batches(data_ranks=degrees.data_ranks, micro_batches=micro_batches)
    bench = Bench(subject, degrees, batches=batches, num_experts=num_experts, precision=precision)
    bench.require_parameters("as they were materialised")
    bench.backward(0)
    bench.require_gradients(0, f", {micro_batches} micro-batch(es)")


def check_units(subject: Subject, degrees: Degrees) -> None:
    """A schedule may call the units of a model one by one, without the model itself."""
    bench = Bench(subject, degrees, batches=Batches(data_ranks=degrees.data_ranks, seldom=False), called="units")
    bench.backward(0)
    bench.require_gradients(0, ", units called one by one")


def check_phases(subject: Subject, degrees: Degrees) -> None:
    """The trait `runs_phases`: pieces with a backward each, between forwards of the next micro-batch; then a whole."""
    bench = Bench(subject, degrees)
    bench.backward_in_pieces(0)
    bench.require_gradients(0, ", runs_phases is stated, and each piece had a backward of its own")
    for parameter in bench.sharded.module.parameters():
        parameter.grad = None
    bench.backward(1)
    bench.require_gradients(1, ", as a whole after a step in pieces")


def check_stages(subject: Subject, degrees: Degrees) -> None:
    """A rank may hold several stages of a pipeline: they are laid out as one model and called one by one."""
    bench = Bench(subject, degrees, called="stages")
    optimizer = bench.sharded.optimizer(SETTINGS)
    bench.train(optimizer, 0)
    bench.require_parameters("after a step of two stages on one rank")
    bench.backward(1)
    bench.require_gradients(1, ", two stages on one rank")


def check_norm_and_clipping(subject: Subject, degrees: Degrees) -> None:
    """The norm counts every parameter once, over all stages; clipping scales by one factor on all ranks."""
    bench = Bench(subject, degrees)
    bench.backward(0)
    before = bench.require_gradients(0)
    kept = {name: gradient.clone() for name, gradient in before.items()}
    wanted = _require_norm(bench, bench.sharded.clip_(None), 1.0)
    bench.require_gradients(0, ", after clip_(None), which only measures")
    _require_norm(bench, bench.sharded.clip_(wanted * 2), 1.0)
    bench.require_gradients(0, ", after clip_ with a maximum above the norm")
    _require_norm(bench, bench.sharded.clip_(wanted / 4), 1.0)
    clipped = bench.sharded.full_gradients()
    quarter = {name: gradient / 4 for name, gradient in bench.local(bench.reference.gradients(0)).items()}
    bench.require_close(clipped, quarter, "gradients clipped to a quarter of their norm")
    _require_norm(bench, bench.sharded.clip_(None), 0.25)
    changed = [name for name, gradient in before.items() if not torch.equal(gradient, kept[name])]
    require(not changed, f"{bench.place}: full_gradients returned tensors that clip_ changed later: {changed[:3]}")


def _require_norm(bench: Bench, norm: torch.Tensor, factor: float) -> float:
    """Require the norm of `factor` times the gradients of step 0, on all ranks; return it."""
    gradients = bench.reference.gradients(0)
    experts = {name: gradient for name, gradient in gradients.items() if bench.roles[name] == "expert"}
    dense = {name: gradient for name, gradient in gradients.items() if name not in experts}
    own = norm_of({name: gradient for name, gradient in bench.local(gradients).items() if name in experts})
    total = torch.tensor([norm_of(gradients) ** 2], dtype=torch.float64, device=bench.device)
    group = bench.meshes.group("pp")
    if group is not None:
        dist.all_reduce(total, group=group)
    wanted = factor * math.sqrt(float(total))
    require(norm.dtype == bench.precision.dtype("high"), f"{bench.place}: clip_ returns {norm.dtype}")
    require(tuple(norm.shape) == (), f"{bench.place}: clip_ returns shape {tuple(norm.shape)}, expected a scalar")
    found = float(norm)
    if abs(found - wanted) > bench.tolerance * wanted:
        why = explain_norm(
            found / factor,
            dense=norm_of(dense) ** 2,
            expert=norm_of(experts) ** 2,
            own_expert=own**2,
            stages=float(total) - norm_of(gradients) ** 2,
            degrees=bench.degrees,
        )
        raise AssertionError(f"{bench.place}: the norm is {found:.9g}, one process has {wanted:.9g}: {why}")
    return wanted


def check_steps(subject: Subject, degrees: Degrees, *, steps: int = 3, num_experts: int | None = None) -> None:
    """AdamW steps as torch's on one process, with clipping and a changing rate; forwards see the new weights."""
    bench = Bench(subject, degrees, num_experts=num_experts)
    optimizer = bench.sharded.optimizer(SETTINGS)
    for step in range(steps):
        bench.train(optimizer, step)
        bench.require_parameters(f"after step {step + 1}")
        found, wanted = bench.loss(step), bench.reference.loss(step)
        stale = "the forward does not see the weights that full_parameters gives"
        require(
            abs(found - wanted) <= bench.tolerance * abs(wanted),
            f"{bench.place}: the loss after step {step + 1} is {found:.9g}, one process has {wanted:.9g}: {stale}",
        )


def check_save(subject: Subject, degrees: Degrees, folder: Path, num_experts: int) -> None:
    """Train two steps and save; names and shapes are global."""
    bench = Bench(subject, degrees, num_experts=num_experts)
    optimizer = bench.sharded.optimizer(SETTINGS)
    _require_global_state(bench, optimizer)
    for step in range(2):
        bench.train(optimizer, step)
    save(_require_global_state(bench, optimizer), checkpoint_id=folder)


def check_load(subject: Subject, degrees: Degrees, folder: Path, num_experts: int, *, saved: Degrees) -> None:
    """Load into a model of other values on another layout; weights, buffers and optimizer go on as in one process."""
    bench = Bench(subject, degrees, num_experts=num_experts, filled_as=_OTHER_VALUES)
    reference = bench.reference
    reference.batches = Batches(data_ranks=saved.data_ranks)
    for step in range(2):
        reference.update({n: g / 2 for n, g in reference.gradients(step).items()}, learning_rate(step))
    reference.batches = bench.batches
    optimizer = bench.sharded.optimizer(SETTINGS)
    # Copies, so that nothing changes before the strategy is asked to.
    state = _cloned(_require_global_state(bench, optimizer))
    load(state, checkpoint_id=folder)
    bench.sharded.load_state_dict(state["model"])
    bench.sharded.load_optimizer_state_dict(optimizer, state["optimizer"])
    bench.require_parameters("after a load")
    buffers = {name: buffer.detach() for name, buffer in bench.sharded.module.named_buffers()}
    bench.require_close(buffers, dict(reference.model.named_buffers()), "buffers after a load")
    moments = bench.sharded.optimizer_state_dict(optimizer)
    for key in ("step", "exp_avg", "exp_avg_sq"):
        found = {name: _whole(held[key]) for name, held in moments.items()}
        bench.require_close(found, {n: held[key] for n, held in reference.moments().items()}, f"{key} after a load")
    bench.train(optimizer, 2)
    bench.require_parameters("one step after a load")


def _cloned(state: dict[str, Any]) -> dict[str, Any]:
    return {key: _cloned(value) if isinstance(value, dict) else value.detach().clone() for key, value in state.items()}


def _require_global_state(bench: Bench, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Require the names and shapes that a state must have; return both parts of it."""
    model = bench.sharded.state_dict()
    shapes = {name: parameter.global_shape for name, parameter in bench.plan.parameters.items()}
    buffers = {name: tuple(buffer.shape) for name, buffer in bench.reference.model.named_buffers()}
    _require_shapes(bench, model, {**shapes, **buffers}, "state_dict")
    moments = bench.sharded.optimizer_state_dict(optimizer)
    for name, shape in shapes.items():
        require(name in moments, f"{bench.place}: optimizer_state_dict misses {name}")
        wanted = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
        _require_shapes(bench, moments[name], wanted, f"optimizer_state_dict, {name}")
    return {"model": model, "optimizer": moments}


def _require_shapes(bench: Bench, found: dict[str, Any], wanted: dict[str, tuple[int, ...]], what: str) -> None:
    missing, unknown = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    require(not missing and not unknown, f"{bench.place}: {what} misses {missing} and adds {unknown}")
    for name, shape in wanted.items():
        given = tuple(found[name].shape)
        hint = " (experts are counted over all ep ranks)" if bench.roles.get(name) == "expert" else ""
        require(given == shape, f"{bench.place}: {what}: {name} has shape {given}, the global one is {shape}{hint}")


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach()


def check_whole_parameters(subject: Subject, degrees: Degrees) -> None:
    """The trait `parameters_stay_whole`: between forward and backward every unit has its parameters whole.

    Split-backward schedules compute weight gradients in pieces and gather nothing again.
    """
    bench = Bench(subject, degrees)
    bench.forward(0, 0)
    wanted = bench.local(bench.reference.parameters)
    for name, parameter in bench.sharded.module.named_parameters():
        storage = 0 if isinstance(parameter, DTensor) else parameter.untyped_storage().nbytes()
        whole = tuple(parameter.shape) == tuple(wanted[name].shape) and storage >= parameter.nbytes
        require(
            whole,
            f"{bench.place}: parameters_stay_whole is stated, yet after the forward {name} is not whole here",
        )
        difference = worst(parameter.detach().cpu(), wanted[name])
        require(not difference.exceeds(bench.tolerance), f"{bench.place}: {name} after the forward is {difference}")
