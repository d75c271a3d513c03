"""A trial of the package on a small model in the job's own groups, before the model itself is laid out.

The released megatron-fsdp 0.6.1 goes wrong in three ways: Adam's first step is its second (when the package wraps the
optimizer), gradients double with each micro-batch where a parameter's group has one rank (when gradients are sent in
another dtype than they are kept in), and unsummed gradients of the whole model are kept beside the sums. This plugin
asks for none of these; whether the installed version, another one or a patched one, does right is found here by what it
computes, not by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from moeframe.errors import PluginError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, ShardedModel
from moeframe_megatron_fsdp.options import MegatronFsdpOptions
from moeframe_megatron_fsdp.tallies import DENSE_ELEMENTS, DENSE_UNITS, Tallies, plan_of, seen

__all__ = ["Findings", "LayOut", "try_out"]

LayOut = Callable[[torch.nn.Module, ModelPlan, Meshes, Precision, MegatronFsdpOptions], ShardedModel]
NUMBERS: Final = (1.0, 2.0, 3.0)
"""The gradient of every weight on every rank, by micro-batch."""
SETTINGS: Final = AdamWSettings(lr=0.125, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.5)
"""Of a step whose result tells apart Adam's first step from its second, and one weight decay from two."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What is not wrong, but should be known."""

    keeps_unsummed_gradients: bool


def try_out(
    mesh: Meshes, precision: Precision, options: MegatronFsdpOptions, lay_out: LayOut, version: str
) -> Findings:
    """Run three micro-batches, a step and one more micro-batch; collective.

    Args:
        mesh: of the job.
        precision: of the job.
        options: of the plugin; a bucket holds one unit of the small model here.
        lay_out: what lays the model out.
        version: of the package, in words.

    Raises:
        PluginError: sums or weights are wrong; names the defect, the version and the way out.
    """
    model = Tallies()
    plan = plan_of(model, mesh, precision)
    sharded = lay_out(model, plan, mesh, precision, replace(options, bucket_elements=DENSE_ELEMENTS))
    for number in NUMBERS:
        _backward(model, number, mesh.device)
    sharded.finish_gradients()
    wanted = {name: sum(NUMBERS) * mesh.size(_axis(plan, name)) for name in plan.parameters}
    _require_sums(sharded.full_gradients(), wanted, plan, mesh, version)
    optimizer = sharded.optimizer(SETTINGS)
    optimizer.step()
    _require_first_step(sharded.full_parameters(), wanted, version)
    optimizer.zero_grad(set_to_none=True)
    peak = _peak_of(lambda: _backward(model, 1.0, mesh.device), mesh.device)
    _require_new_weights(seen(model), wanted, version)
    sharded.finish_gradients()
    again = {name: float(mesh.size(_axis(plan, name))) for name in plan.parameters}
    _require_sums(sharded.full_gradients(), again, plan, mesh, version)
    unsummed = DENSE_UNITS * DENSE_ELEMENTS * precision.dtype("reduce").itemsize
    return Findings(keeps_unsummed_gradients=options.zero > 1 and peak > unsummed * 3 // 4)


def _backward(model: torch.nn.Module, number: float, device: torch.device) -> None:
    model(number, device).sum().backward()


def _axis(plan: ModelPlan, name: str) -> str:
    return "edp" if plan.role(name) == "expert" else "dp"


def _peak_of(call: Callable[[], None], device: torch.device) -> int:
    """Return the bytes of device memory that a call needs at its highest above what is held before it."""
    if device.type != "cuda":
        call()
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    return torch.cuda.max_memory_allocated(device) - before


def _require_sums(
    found: Mapping[str, torch.Tensor], wanted: Mapping[str, float], plan: ModelPlan, mesh: Meshes, version: str
) -> None:
    for name, value in wanted.items():
        if bool((found[name] == value).all()):
            continue
        given = float(found[name].flatten()[0])
        expert = plan.role(name) == "expert"
        axis = "edp_shard" if expert else "dp_shard"
        what = f"{version} sums gradients wrongly in a trial on this job's groups: {given:g} where {value:g} is right"
        if mesh.size(axis) == 1 and given > value:
            raise PluginError(
                f"sharding 'megatron_fsdp': {what}, in {'experts' if expert else 'parameters'} that one rank of a "
                "replica holds: they double with each micro-batch where a gradient's group has one rank. "
                f"{_legal_layouts(mesh, expert=expert)}, or sharding.name=fsdp2."
            )
        raise PluginError(
            f"sharding 'megatron_fsdp': {what}, in a parameter of the role {plan.role(name)} over {mesh.size(axis)} "
            "rank(s) of a replica. Install megatron-fsdp 0.6.1, or use sharding.name=fsdp2."
        )


def _legal_layouts(mesh: Meshes, *, expert: bool) -> str:
    """Say which layouts give a gradient a group of two ranks or more."""
    shards, ranks = mesh.size("dp_shard"), mesh.size("dp")
    if not expert or shards == 1:
        legal = [replicas for replicas in range(1, ranks // 2 + 1) if ranks % replicas == 0]
        key = "parallel.dp_replicate"
    else:
        legal = [ep for ep in range(1, shards // 2 + 1) if shards % ep == 0]
        key = "parallel.ep"
    return f"Use {key} of {' or '.join(map(str, legal))}" if legal else "Launch more processes"


def _require_first_step(found: Mapping[str, torch.Tensor], gradients: Mapping[str, float], version: str) -> None:
    for name, gradient in gradients.items():
        right = _torch_step(gradient)
        given = found[name].double()
        if bool(((given - right).abs() > 1e-5 * abs(right)).any()):
            raise PluginError(
                f"sharding 'megatron_fsdp': a first AdamW step with {version} makes a weight "
                f"{float(given.flatten()[0]):.7g} where torch's AdamW makes it {right:.7g}, in a trial on this job's "
                "groups: its step counter or its weight decay is off. Install "
                "megatron-fsdp 0.6.1, or use sharding.name=fsdp2."
            )


def _require_new_weights(found: Mapping[str, float], gradients: Mapping[str, float], version: str) -> None:
    for name, gradient in gradients.items():
        right = _torch_step(gradient)
        if abs(found[name] - right) > 0.01 * abs(right):  # bfloat16 has 8 bits
            raise PluginError(
                f"sharding 'megatron_fsdp': after a step with {version} a module computes with a weight of "
                f"{found[name]:.4g} where the optimizer has made it {right:.4g}, in a trial on this job's groups. "
                "Install megatron-fsdp 0.6.1, or use sharding.name=fsdp2."
            )


def _torch_step(gradient: float) -> float:
    """Return what torch's AdamW makes of a weight of 1 in its first step."""
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    weight.grad = torch.full_like(weight, gradient)
    torch.optim.AdamW(
        [weight], lr=SETTINGS.lr, betas=SETTINGS.betas, eps=SETTINGS.eps, weight_decay=SETTINGS.weight_decay
    ).step()
    return float(weight.detach())
