"""What MoE layers count, outside autograd: tokens of each expert, balance loss, dropped assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Counters", "LayerCounter", "recomputing", "stack_counters"]


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Sums over this rank's tokens since the last time they were taken; L counts all MoE layers of the model.

    L runs over the decoder's MoE layers in order, then over the MTP modules. Layers of other pipeline stages are zero.
    """

    tokens_per_expert: torch.Tensor
    """(L, E) int64: assignments that the router chose, dropped ones included, padding not."""
    balance_sum: torch.Tensor
    """(L,) at least float32: over sequences, valid tokens x balance loss (alpha included)."""
    dropped: torch.Tensor
    """(L,) int64: assignments over capacity."""


class LayerCounter:
    """Counters of one MoE layer; a plain object, so it is neither sharded nor saved."""

    def __init__(self, num_experts: int, dtype: torch.dtype) -> None:
        self._num_experts = num_experts
        self._dtype = dtype
        self._sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None

    def add(self, tokens_E: torch.Tensor, balance: torch.Tensor | None, dropped: torch.Tensor | None) -> None:
        """Add what one forward counted; None stands for zero."""
        if self._sums is None:
            self._sums = self._zeros(tokens_E.device)
        tokens_sum, balance_sum, dropped_sum = self._sums
        tokens_sum += tokens_E
        if balance is not None:
            balance_sum += balance.detach()
        if dropped is not None:
            dropped_sum += dropped

    def take(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return (tokens_E, balance, dropped) and start again at zero; zeros on `device` if nothing was counted."""
        sums = self._zeros(device) if self._sums is None else self._sums
        self._sums = None
        return sums

    def _zeros(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        return (
            torch.zeros(self._num_experts, dtype=torch.int64, device=device),
            torch.zeros((), dtype=self._dtype, device=device),
            torch.zeros((), dtype=torch.int64, device=device),
        )


def stack_counters(counters: Sequence[LayerCounter], device: torch.device, num_experts: int) -> Counters:
    """Take the counters of all layers, in the order given."""
    taken = [counter.take(device) for counter in counters]
    if not taken:
        return Counters(
            tokens_per_expert=torch.zeros(0, num_experts, dtype=torch.int64, device=device),
            balance_sum=torch.zeros(0, device=device),
            dropped=torch.zeros(0, dtype=torch.int64, device=device),
        )
    tokens, balance, dropped = zip(*taken, strict=True)
    return Counters(
        tokens_per_expert=torch.stack(tokens), balance_sum=torch.stack(balance), dropped=torch.stack(dropped)
    )


def recomputing() -> bool:
    """Say whether this forward runs inside a backward, that is, repeats one that was already counted.

    Activation checkpointing recomputes there, whole blocks or single phases alike. torch.utils.checkpoint asks the
    autograd engine the same question.
    """
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  # torch has no public name for it
