"""The compute protocol: the building blocks of the model for one precision policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import nn

    from moeframe.protocols.precision import Precision

__all__ = ["Compute", "ComputeContext", "ComputeTraits", "ExpertsModule"]


@dataclass(frozen=True, kw_only=True)
class ComputeTraits:
    """What the rest of a job may rely on."""

    saves_expert_input: bool
    """The backward of the grouped experts reads the original `rows_RD` (false: a cast copy is saved instead)."""
    splits_expert_backward: bool
    """An expert's weight gradient can run apart from its input gradient: its backward asks
    `moeframe.protocols.weight_gradients` whether someone wants it later."""
    saves_expert_output: bool = True
    """The backward of the experts, or of a linear, reads what it returned."""
    saves_norm_output: bool = True
    """The backward of a norm reads what it returned."""
    compiles_dtypes: tuple[str, ...] = ()
    """Compute dtypes in which torch.compile can trace its modules."""
    row_multiple: int = 1
    """Rows of every expert must be a multiple of this."""
    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class ComputeContext:
    """What compute modules are built for."""

    precision: Precision
    device: torch.device


class ExpertsModule(Protocol):
    """Routed experts of this rank, a SwiGLU each: ``down(silu(gate(x)) * up(x) * gates)``.

    Its parameters are `gate_up_proj` (E, 2F, D), gate rows first, then up, and `down_proj` (E, D, F), with E the local
    experts and F the expert width: the layout of Hugging Face transformers 5.
    """

    gate_up_proj: torch.Tensor
    down_proj: torch.Tensor

    def __call__(
        self,
        rows_RD: torch.Tensor,
        gates_R: torch.Tensor,
        counts_E: torch.Tensor,
        counts_host: tuple[int, ...] | None,
    ) -> torch.Tensor:
        """Return (R, D): each row through its expert, times its gate. Rows beyond the counts come back as zeros."""


@runtime_checkable
class Compute(Protocol):
    """Builds modules whose parameters are on the device of the current `torch.device` context (often meta).

    Parameters keep the dtype `precision.parameters`; a module computes in the dtype of its input.
    """

    def linear(self, in_features: int, out_features: int) -> nn.Module:
        """Return a linear map without bias; parameter `weight` (out_features, in_features)."""
        ...

    def rms_norm(self, size: int, eps: float) -> nn.Module:
        """Return an RMSNorm over the last dimension; parameter `weight` (size,); statistics in float32."""
        ...

    def grouped_experts(self, num_local_experts: int, hidden_size: int, intermediate_size: int) -> nn.Module:
        """Return an `ExpertsModule`."""
        ...

    def attention(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Causal softmax attention, softmax in float32.

        Args:
            q: (B, H, S, head size of queries and keys).
            k: as `q`.
            v: (B, H, S, head size of values), which may differ.
            scale: factor of the scores before the softmax.
            mask: (B, 1, S, S) bool, true where a query may look, already causal; None: plain causal.

        Returns:
            (B, H, S, head size of values).
        """
        ...
