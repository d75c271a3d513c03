"""The `experts` phase as modules: routed experts with the shared expert, or the dense MLP of the first layers."""

from __future__ import annotations

import torch
from torch import nn

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.layers import SwiGLU
from moeframe.protocols.compute import Compute

__all__ = ["DenseExperts", "MixtureExperts"]


class DenseExperts(nn.Module):
    """The dense MLP."""

    def __init__(self, config: DeepSeekV3Config, compute: Compute) -> None:
        super().__init__()
        self.mlp = SwiGLU(compute, config.hidden_size, config.intermediate_size)

    def forward(self, x_BSD: torch.Tensor) -> tuple[torch.Tensor]:
        """Return (B, S, D)."""
        return (self.mlp(x_BSD),)


class MixtureExperts(nn.Module):
    """This rank's routed experts, and the shared expert on this rank's own tokens."""

    def __init__(self, config: DeepSeekV3Config, compute: Compute, *, num_local_experts: int) -> None:
        super().__init__()
        self.routed = compute.grouped_experts(num_local_experts, config.hidden_size, config.moe_intermediate_size)
        self.shared: SwiGLU | None = None
        if config.n_shared_experts:
            width = config.n_shared_experts * config.moe_intermediate_size
            self.shared = SwiGLU(compute, config.hidden_size, width)

    def forward(
        self,
        x_BSD: torch.Tensor,
        rows_RD: torch.Tensor,
        gates_R: torch.Tensor,
        counts_E: torch.Tensor,
        counts_host: tuple[int, ...] | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the rows (R, D) after their experts, times their gates, and the shared expert's (B, S, D) or None."""
        shared_BSD = None if self.shared is None else self.shared(x_BSD)
        return self.routed(rows_RD, gates_R, counts_E, counts_host), shared_BSD
