"""What all strategies of this plugin share: norm, optimizer and state of a model whose parameters lie on many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, ShardedModel
from moeframe_torch_sharding.norm import Share, clip_to_norm_, global_norm
from moeframe_torch_sharding.optimizer import PieceAdamW, local_piece
from moeframe_torch_sharding.spread import Spread

__all__ = ["LaidOutModel"]


class LaidOutModel(ShardedModel):
    """A materialised model. `parameters` are the ones that hold gradients, by name, in the order of the plan's units.

    A subclass says how gradients get their final value, and over which axis the pieces of dense and expert parameters
    lie (`dense_axis`, `expert_axis`; None: this rank holds all of them).
    """

    dense_axis: ClassVar[str | None]
    expert_axis: ClassVar[str | None]

    def __init__(self, module: nn.Module, plan: ModelPlan, meshes: Meshes, precision: Precision) -> None:
        self.module = module
        self._plan = plan
        self._meshes = meshes
        self._precision = precision
        present = dict(module.named_parameters())
        self.parameters = {name: present[name] for unit in plan.units for name in unit.parameters}
        self._spreads = {name: self._spread(name, parameter) for name, parameter in self.parameters.items()}
        saved = module.state_dict()
        self._buffers = {name: buffer for name, buffer in module.named_buffers() if name in saved}
        self._spreads |= {name: Spread(tuple(buffer.shape)) for name, buffer in self._buffers.items()}

    def _spread(self, name: str, parameter: nn.Parameter) -> Spread:
        """Say where the pieces of a parameter lie."""
        shape = self._plan.parameters[name].global_shape
        is_expert = self._plan.role(name) == "expert"
        local = tuple(parameter.shape)
        if is_expert:
            local = (local[0] * self._meshes.size("ep"), *local[1:])
        if local != shape:
            raise ContractError(
                f"{name}: the plan says the global shape is {shape}, but the model has {tuple(parameter.shape)} on "
                f"each of {self._meshes.size('ep') if is_expert else 1} ranks. Correct the plan."
            )
        placements: tuple[Placement, ...] = tuple(parameter.placements) if isinstance(parameter, DTensor) else ()
        if is_expert and self._meshes.group("ep") is not None:
            # Experts are cut between ep ranks first; each rank's stack may be cut further between its replicas.
            return Spread(shape, self._meshes.mesh("ep", "edp"), (Shard(0), *(placements or (Replicate(),))))
        if isinstance(parameter, DTensor):
            return Spread(shape, parameter.device_mesh, placements)
        return Spread(shape)

    def _drop_gathered(self) -> None:
        """Leave the optimizer's parameters as the only copy of the weights; a strategy that gathers overrides this."""

    def finish_gradients(self) -> None:
        """Give every parameter its final gradient; zeros where the model used it on no micro-batch."""
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Scale gradients to a global norm of at most `max_norm` and return the norm before; no host sync."""
        dense = self._gradient_pieces(expert=False)
        experts = self._gradient_pieces(expert=True)
        norm = global_norm(
            [Share(dense, self._group(self.dense_axis)), Share(experts, self._group(self.expert_axis))],
            self._group("pp"),
            self._meshes.device,
            self._precision.dtype("high"),
        )
        if max_norm is not None:
            clip_to_norm_([*dense, *experts], norm, max_norm)
        return norm

    def _group(self, axis: str | None) -> torch.distributed.ProcessGroup | None:
        return None if axis is None else self._meshes.group(axis)

    def _gradient_pieces(self, *, expert: bool) -> list[torch.Tensor]:
        return [
            local_piece(parameter.grad)
            for name, parameter in self.parameters.items()
            if parameter.grad is not None and (self._plan.role(name) == "expert") is expert
        ]

    def optimizer(self, settings: AdamWSettings) -> PieceAdamW:
        """Return AdamW over this rank's pieces."""
        return PieceAdamW(self.parameters, settings)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return whole gradients; collective."""
        return {
            name: torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
            if parameter.grad is None
            else _whole(parameter.grad)
            for name, parameter in self.parameters.items()
        }

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return whole parameters; collective."""
        return {name: _whole(parameter) for name, parameter in self.parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and persistent buffers in global shape; they share storage with the model."""
        held = {name: local_piece(parameter) for name, parameter in self.parameters.items()} | self._buffers
        return {name: self._spreads[name].wrap(piece) for name, piece in held.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and persistent buffers in place; collective when the state lies in another layout."""
        held = {name: local_piece(parameter) for name, parameter in self.parameters.items()} | self._buffers
        self._drop_gathered()
        self._take(held, state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer this model made, in global shape, sharing storage with it."""
        return {
            name: {key: value if key == "step" else self._spreads[name].wrap(value) for key, value in moments.items()}
            for name, moments in _made_here(optimizer).moments().items()
        }

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Copy optimizer state in place; collective when the state lies in another layout."""
        moments = _made_here(optimizer).moments()
        _require_same_names(moments, state)
        for name, held in moments.items():
            _require_same_names(held, state[name], within=f"{name}: ")
            held["step"].copy_(state[name]["step"])
            for key in held.keys() - {"step"}:
                held[key].copy_(self._spreads[name].piece(f"{key} of {name}", state[name][key]))

    def _take(self, held: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        _require_same_names(held, state)
        with torch.no_grad():
            for name, piece in held.items():
                piece.copy_(self._spreads[name].piece(name, state[name]))


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    if isinstance(tensor, DTensor) and tensor.device_mesh.size() > 1:
        return tensor.full_tensor()
    return local_piece(tensor).clone()  # full_tensor on a mesh of one rank shares storage with the tensor


def _made_here(optimizer: torch.optim.Optimizer) -> PieceAdamW:
    if not isinstance(optimizer, PieceAdamW):
        raise ContractError(
            f"{type(optimizer).__name__} was given as optimizer, but its state has a global form only when "
            "the sharded model's own optimizer() made it."
        )
    return optimizer


def _require_same_names(held: Mapping[str, Any], state: Mapping[str, Any], within: str = "") -> None:
    missing, unknown = sorted(held.keys() - state.keys()), sorted(state.keys() - held.keys())
    if missing or unknown:
        raise ContractError(
            f"{within}the state does not fit this model. Missing: {missing or 'nothing'}. "
            f"Unknown: {unknown or 'nothing'}. Load a state of the same model and plan."
        )
