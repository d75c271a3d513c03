"""A model laid out by Megatron-FSDP, with the operations that training needs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, ShardedModel
from moeframe_megatron_fsdp.adamw import ShardAdamW
from moeframe_megatron_fsdp.engine import Engine
from moeframe_megatron_fsdp.flat import Run, by_rows
from moeframe_megatron_fsdp.norm import clip_to_norm_, norm_over

__all__ = ["MegatronFsdpModel", "Piece"]


@dataclass(frozen=True)
class Piece:
    """What this rank holds of a parameter: flat views of the package's buffers, and where they lie in the whole.

    `run` lies in this ep rank's stack for an expert, whose rows begin at `first_row` of the global tensor.
    """

    weight: torch.Tensor
    gradient: torch.Tensor
    run: Run
    global_shape: tuple[int, ...]
    first_row: int


class MegatronFsdpModel(ShardedModel):
    """The package's buffers hold weights and gradients; each piece is this rank's run of a parameter's elements.

    States leave as DTensors cut by rows, as torch cuts them, so that any strategy can load them; the package's own
    runs end where its buffers are cut.
    """

    def __init__(
        self, module: nn.Module, plan: ModelPlan, meshes: Meshes, precision: Precision, engine: Engine
    ) -> None:
        self.module = module
        self._plan = plan
        self._meshes = meshes
        self._precision = precision
        self._engine = engine
        self._pieces: dict[str, Piece] = {}
        self._buffer_names: tuple[str, ...] = ()

    def hold(self, pieces: Mapping[str, Piece], buffer_names: tuple[str, ...]) -> None:
        """Take the pieces, in the order of the plan's units, and the names of persistent buffers."""
        self._pieces = dict(pieces)
        self._buffer_names = buffer_names

    @property
    def pieces(self) -> Mapping[str, Piece]:
        """The pieces of this rank, by parameter name."""
        return self._pieces

    def optimizer(self, settings: AdamWSettings) -> ShardAdamW:
        """Return AdamW over this rank's pieces."""
        return ShardAdamW(
            {name: piece.weight for name, piece in self._pieces.items()},
            self._gradients,
            settings,
            updated=self._engine.weights_changed,
            cleared=self._engine.clear_gradients,
        )

    def _gradients(self) -> dict[str, torch.Tensor]:
        return {name: piece.gradient for name, piece in self._pieces.items()}

    def finish_gradients(self) -> None:
        """Bring gradients to their sums; parameters that no micro-batch used have zeros."""
        self._engine.finish()

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Scale gradients to a global norm of at most `max_norm` and return the norm before; no host sync."""
        pieces = list(self._gradients().values())
        # One replica holds every piece once: dp_shard = edp_shard x ep.
        groups = [group for axis in ("dp_shard", "pp") if (group := self._meshes.group(axis)) is not None]
        norm = norm_over(pieces, groups, self._meshes.device, self._precision.dtype("high"))
        if max_norm is not None:
            clip_to_norm_(pieces, norm, max_norm)
        return norm

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return whole gradients; collective."""
        return {name: piece.run.whole(piece.gradient) for name, piece in self._pieces.items()}

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return whole parameters; collective."""
        return {name: piece.run.whole(piece.weight) for name, piece in self._pieces.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, copied into DTensors of global shape, and persistent buffers; collective."""
        found: dict[str, Any] = {name: self._leaving(name, piece.weight) for name, piece in self._pieces.items()}
        return found | {name: self.module.get_buffer(name).detach() for name in self._buffer_names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy parameters and persistent buffers in place; collective."""
        _require_same_names([*self._pieces, *self._buffer_names], state)
        with torch.no_grad():
            for name, piece in self._pieces.items():
                piece.weight.copy_(self._arriving(name, name, state[name]))
            for name in self._buffer_names:
                self.module.get_buffer(name).copy_(_whole(name, state[name], tuple(self.module.get_buffer(name).shape)))
        self._engine.weights_changed()
        self._engine.forget_gathered()

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer this model made, copied into DTensors of global shape; collective."""
        return {
            name: {key: value if key == "step" else self._leaving(name, value) for key, value in held.items()}
            for name, held in _made_here(optimizer).moments().items()
        }

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Copy optimizer state in place; collective."""
        moments = _made_here(optimizer).moments()
        _require_same_names(moments, state)
        for name, held in moments.items():
            _require_same_names(held, state[name], within=f"{name}: ")
            held["step"].copy_(state[name]["step"])
            for key in ("exp_avg", "exp_avg_sq"):
                held[key].copy_(self._arriving(f"{key} of {name}", name, state[name][key]))

    def _layout(self, name: str) -> tuple[DeviceMesh, tuple[Placement, ...]]:
        """Return where the rows of a parameter lie outside the package."""
        if self._plan.role(name) == "expert":
            return self._meshes.mesh("ep", "dp_replicate", "edp_shard"), (Shard(0), Replicate(), Shard(0))
        return self._meshes.mesh("dp_replicate", "dp_shard"), (Replicate(), Shard(0))

    def _leaving(self, name: str, value: torch.Tensor) -> DTensor:
        """Return a tensor that lies as the piece of a parameter by rows, in global shape."""
        piece = self._pieces[name]
        rows = by_rows(piece.run.shape, piece.run.group)
        own = rows.of(piece.run.whole(value)).view(-1, *piece.run.shape[1:]).clone()
        mesh, placements = self._layout(name)
        stride = torch.empty(piece.global_shape, device="meta").stride()
        shape = torch.Size(piece.global_shape)
        return DTensor.from_local(own, mesh, placements, run_check=False, shape=shape, stride=stride)

    def _arriving(self, what: str, name: str, value: Any) -> torch.Tensor:
        """Return this rank's elements of a tensor of global shape, in whatever layout it comes."""
        piece = self._pieces[name]
        run = piece.run
        if isinstance(value, DTensor) and tuple(value.shape) == piece.global_shape:
            mesh, placements = self._layout(name)
            if value.device_mesh == mesh and tuple(value.placements) == placements:
                return run.of(by_rows(run.shape, run.group).whole(value.to_local()))
        whole = _whole(what, value, piece.global_shape)
        return run.of(whole.narrow(0, piece.first_row, run.shape[0]))


def _whole(what: str, value: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(value.shape) != shape:
        raise ContractError(
            f"{what}: the state has shape {tuple(value.shape)}, this model has the global shape {shape}. "
            "Load a state of the same model dimensions."
        )
    found: torch.Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return found


def _made_here(optimizer: torch.optim.Optimizer) -> ShardAdamW:
    if not isinstance(optimizer, ShardAdamW):
        raise ContractError(
            f"{type(optimizer).__name__} was given as optimizer, but its state has a global form only when "
            "the sharded model's own optimizer() made it."
        )
    return optimizer


def _require_same_names(held: Any, state: Mapping[str, Any], within: str = "") -> None:
    missing, unknown = sorted(set(held) - state.keys()), sorted(state.keys() - set(held))
    if missing or unknown:
        raise ContractError(
            f"{within}the state does not fit this model. Missing: {missing or 'nothing'}. "
            f"Unknown: {unknown or 'nothing'}. Load a state of the same model and plan."
        )
