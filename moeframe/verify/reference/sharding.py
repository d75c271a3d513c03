"""One process holds everything; the norm and the clipping by their definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from moeframe.errors import ContractError
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, Meshes, ModelPlan, ShardedModel, Sharding

__all__ = ["ReferenceSharding", "WholeModel"]


class WholeModel(ShardedModel):
    """A model in one process, with torch's AdamW."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def optimizer(self, settings: AdamWSettings) -> torch.optim.Optimizer:
        """Return AdamW over all parameters."""
        return torch.optim.AdamW(
            self.module.parameters(),
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            foreach=False,
        )

    def finish_gradients(self) -> None:
        """Give zeros to parameters that no micro-batch has used."""
        for parameter in self.module.parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Scale all gradients to an L2 norm of at most `max_norm`; return the norm before."""
        gradients = [parameter.grad for parameter in self.module.parameters() if parameter.grad is not None]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).square().sum().sqrt()
        if max_norm is not None and norm > max_norm:
            for gradient in gradients:
                gradient.mul_(max_norm / norm)
        return norm

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.module.named_parameters()
        }

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters."""
        return {name: parameter.detach() for name, parameter in self.module.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        """Return the module's own."""
        return self.module.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load it into the module."""
        self.module.load_state_dict(state)

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state by parameter name."""
        named = self.module.named_parameters()
        return {name: dict(optimizer.state[parameter]) for name, parameter in named}

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Take over the state by parameter name."""
        for name, parameter in self.module.named_parameters():
            optimizer.state[parameter] = dict(state[name])


class ReferenceSharding(Sharding):
    """Lays nothing out."""

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> WholeModel:  # noqa: ARG002
        """Fill the model on the device.

        Raises:
            ContractError: there are several ranks.
        """
        if mesh.size("dp") > 1 or mesh.size("pp") > 1:
            raise ContractError("the reference sharding works in one process.")
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        return WholeModel(model)
