"""What all strategies of this plugin share: norm, optimizer and state of a model whose parameters lie on many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, ShardedModel
from moeframe_torch_sharding.norm import Share, clip_to_norm_, global_norm
from moeframe_torch_sharding.optimizer import PieceAdamW, local_piece
from moeframe_torch_sharding.spread import Spread

__all__ = ["LaidOutModel"]


class LaidOutModel(ShardedModel):
    """A materialised model. `parameters` are the ones that hold gradients, by name, in the order of the plan's units.

    A subclass says how gradients get their final value, and where pieces lie. `dense_axis` and `expert_axis` are those
    over which final gradients lie, each piece once (None: this rank holds all of them). `dense_mesh` and `expert_mesh`
    are the axes over which a parameter is sharded and replicated.
    """

    dense_axis: ClassVar[str | None]
    expert_axis: ClassVar[str | None]
    dense_mesh: ClassVar[tuple[str, ...]] = ("dp",)
    expert_mesh: ClassVar[tuple[str, ...]] = ("edp",)

    def __init__(self, module: nn.Module, plan: ModelPlan, meshes: Meshes, precision: Precision) -> None:
        self.module = module
        self._plan = plan
        self._meshes = meshes
        self._precision = precision
        present = dict(module.named_parameters())
        self.parameters = {name: present[name] for unit in plan.units for name in unit.parameters}
        self._stacks = {name: self._stack(name, parameter) for name, parameter in self.parameters.items()}
        self._shares = {name: self._share(name, stack) for name, stack in self._stacks.items()}
        self._spreads = {name: self._global(name, stack) for name, stack in self._stacks.items()}
        self._share_spreads = {name: self._global(name, share) for name, share in self._shares.items()}
        saved = module.state_dict()
        buffers = {name: Spread(tuple(buffer.shape)) for name, buffer in module.named_buffers() if name in saved}
        self._buffer_names = tuple(buffers)
        self._spreads |= buffers

    def _stack(self, name: str, parameter: nn.Parameter) -> Spread:
        """Say where the pieces of a parameter lie; of an expert parameter, this ep rank's stack."""
        shape = tuple(parameter.shape)
        if not isinstance(parameter, DTensor):
            return Spread(shape)
        # Not the parameter's own mesh: DTensor's caches may have put an equal mesh of destroyed groups there.
        mesh = self._meshes.mesh(*self._mesh_axes(name))
        return Spread(shape, mesh, tuple(parameter.placements))

    def _mesh_axes(self, name: str) -> tuple[str, ...]:
        return self.expert_mesh if self._plan.role(name) == "expert" else self.dense_mesh

    def _share(self, name: str, stack: Spread) -> Spread:  # noqa: ARG002 - for strategies that cut by name
        """Say where a parameter's final gradient and optimizer state lie, of an expert within its ep rank's stack.

        As the parameter itself, unless a strategy shards these further.
        """
        return stack

    def _own(self, name: str) -> torch.Tensor:
        """Return the piece of a parameter that this rank updates: a view of what it holds."""
        piece = local_piece(self.parameters[name])
        return piece if self._shares[name] is self._stacks[name] else self._shares[name].piece(name, piece)

    def _global(self, name: str, stack: Spread) -> Spread:
        """Say where the pieces of a parameter lie, all ep ranks together."""
        wanted = self._plan.parameters[name].global_shape
        is_expert = self._plan.role(name) == "expert"
        holders = self._meshes.size("ep") if is_expert else 1
        if (stack.shape[0] * holders, *stack.shape[1:]) != wanted:
            raise ContractError(
                f"{name}: the plan says the global shape is {wanted}, but the model has {stack.shape} on each of "
                f"{holders} ranks. Correct the plan."
            )
        if not is_expert or self._meshes.group("ep") is None:
            return stack
        # Experts are cut between ep ranks first; each rank's stack may be cut further between its replicas.
        inner = stack.placements or (Replicate(),) * len(self.expert_mesh)
        return Spread(wanted, self._meshes.mesh("ep", *self.expert_mesh), (Shard(0), *inner))

    def _drop_gathered(self) -> None:
        """Leave the optimizer's parameters as the only copy of the weights; a strategy that gathers overrides this."""

    def finish_gradients(self) -> None:
        """Give every parameter its final gradient; zeros where the model used it on no micro-batch."""
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                parameter.grad = self._stacks[name].wrap(torch.zeros_like(local_piece(parameter)))

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
        pieces = {
            name: torch.zeros_like(self._own(name)) if owner.grad is None else local_piece(owner.grad)
            for name, owner in self.parameters.items()
        }
        return {name: self._shares[name].whole(piece) for name, piece in pieces.items()}

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return whole parameters; collective."""
        return {name: self._stacks[name].whole(local_piece(parameter)) for name, parameter in self.parameters.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and persistent buffers in global shape; they share storage with the model."""
        return {name: self._spreads[name].wrap(piece) for name, piece in self._held().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and persistent buffers in place; collective when the state lies in another layout."""
        held = self._held()
        _require_same_names(held, state)
        self._drop_gathered()
        with torch.no_grad():
            for name, piece in held.items():
                piece.copy_(self._spreads[name].piece(name, state[name]))

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer this model made, in global shape, sharing storage with it."""
        moments = _made_here(optimizer).moments()
        return {
            name: {key: value if key == "step" else spread.wrap(value) for key, value in moments[name].items()}
            for name, spread in self._share_spreads.items()
        }

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Copy optimizer state in place; collective when the state lies in another layout."""
        moments = _made_here(optimizer).moments()
        _require_same_names(moments, state)
        for name, held in moments.items():
            _require_same_names(held, state[name], within=f"{name}: ")
            held["step"].copy_(state[name]["step"])
            for key in held.keys() - {"step"}:
                held[key].copy_(self._share_spreads[name].piece(f"{key} of {name}", state[name][key]))

    def _held(self) -> dict[str, torch.Tensor]:
        """Return this rank's pieces of all parameters, and the persistent buffers."""
        pieces = {name: local_piece(parameter) for name, parameter in self.parameters.items()}
        return pieces | {name: self.module.get_buffer(name) for name in self._buffer_names}


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
