"""The plan of a model part: its sharding units, the role of every parameter, and how to fill them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from moeframe.model.block import Block
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.model.experts import MixtureExperts
from moeframe.model.init import SeededWeights
from moeframe.model.mtp import MTPModule
from moeframe.model.stages import StagedModel
from moeframe.protocols.sharding import ModelPlan, Parameter, Role, Unit

__all__ = ["Weights", "build_plan", "fill_model"]


class Weights(Protocol):
    """Where the first values of parameters and persistent buffers come from."""

    def fill_(self, name: str, tensor: torch.Tensor, *, first_expert: int | None) -> None:
        """Fill a tensor in place.

        Args:
            name: its name in the module tree of the model.
            tensor: allocated, in its final dtype and on its final device.
            first_expert: for stacked experts, the global number of the first one in `tensor`; else None.
        """


def build_plan(model: DeepSeekV3 | StagedModel, *, seed: int = 0, source: Weights | None = None) -> ModelPlan:
    """Describe a model part to a sharding strategy.

    Args:
        model: the part, or the parts of one rank, usually on the meta device.
        seed: of the random initial weights.
        source: fills the weights instead, for example from a Hugging Face directory.
    """
    weights = SeededWeights(seed, model.config.initializer_range) if source is None else source
    names = [*_unit_names(model)]
    owned: dict[str, list[str]] = {name: [] for name in names}
    buffers: dict[str, list[str]] = {name: [] for name in names}
    parameters: dict[str, Parameter] = {}
    for name, tensor in model.named_parameters():
        role = _role(model, name)
        shape = tuple(tensor.shape)
        if role == "expert":
            shape = (model.config.n_routed_experts, *shape[1:])
        parameters[name] = Parameter(name=name, role=role, global_shape=shape)
        owned[_innermost(name, owned)].append(name)
    for name, _ in model.named_buffers():
        buffers[_innermost(name, owned)].append(name)

    def materialize(unit_name: str, device: torch.device) -> None:
        for name in (*owned[unit_name], *buffers[unit_name]):
            is_expert = name in parameters and parameters[name].role == "expert"
            _fill(model, name, device, weights, model.first_expert if is_expert else None)

    units = [
        Unit(
            name=name,
            parameters=tuple(owned[name]),
            roles=frozenset(parameters[parameter].role for parameter in owned[name]),
            high_precision=name.endswith(".router"),
            methods=_methods(name),
        )
        for name in names
    ]
    roots = model.stage_names if isinstance(model, StagedModel) else ("",)
    return ModelPlan(units=tuple(units), parameters=parameters, materialize=materialize, roots=roots)


def fill_model(model: DeepSeekV3, device: torch.device, *, seed: int = 0, source: Weights | None = None) -> None:
    """Fill a whole model part on one device, without a sharding strategy."""
    plan = build_plan(model, seed=seed, source=source)
    for unit in plan.units:
        plan.materialize(unit.name, device)


def _unit_names(model: DeepSeekV3 | StagedModel) -> Iterator[str]:
    """Yield the units in the order of execution, children before parents, the root last; none without parameters."""
    if model.embedding is not None:
        yield "embedding"
    for layer, block in model.blocks.items():
        assert isinstance(block, Block)
        yield from _block_units(f"blocks.{layer}", block)
    for depth, module in model.mtp.items():
        assert isinstance(module, MTPModule)
        yield from _block_units(f"mtp.{depth}.block", module.block)
        yield f"mtp.{depth}"
    if model.head is not None:
        yield "head"
    yield ""


def _block_units(prefix: str, block: Block) -> Iterator[str]:
    if block.attend.router is not None:
        yield f"{prefix}.attend.router"
    yield f"{prefix}.attend"
    if isinstance(block.experts, MixtureExperts):
        yield f"{prefix}.experts.routed"
        if block.experts.shared is None:
            return
    yield f"{prefix}.experts"


def _methods(unit: str) -> tuple[str, ...]:
    """Return what nodes call of a unit that holds more than one phase uses."""
    if not unit:
        return ("leave",)
    return ("enter", "leave") if unit.startswith("mtp.") and unit.count(".") == 1 else ()


def _innermost(name: str, units: dict[str, list[str]]) -> str:
    module = name
    while module:
        module = module.rpartition(".")[0]
        if module in units:
            return module
    return ""


def _role(model: nn.Module, name: str) -> Role:
    owner = name.rpartition(".")[0]
    if owner == "embedding":
        return "embedding"
    if owner.endswith(".attend.router"):
        return "router"
    parent = model.get_submodule(owner.rpartition(".")[0])
    if isinstance(parent, MixtureExperts) and owner.endswith(".routed"):
        return "expert"
    return "dense"


def _fill(model: nn.Module, name: str, device: torch.device, weights: Weights, first_expert: int | None) -> None:
    """Allocate one parameter or buffer on `device` and fill it."""
    module_name, _, leaf = name.rpartition(".")
    owner = model.get_submodule(module_name)
    old = getattr(owner, leaf)
    tensor = torch.empty(old.shape, dtype=old.dtype, device=device)
    weights.fill_(name, tensor, first_expert=first_expert)
    if isinstance(old, nn.Parameter):
        setattr(owner, leaf, nn.Parameter(tensor, requires_grad=old.requires_grad))
    else:
        setattr(owner, leaf, tensor)
