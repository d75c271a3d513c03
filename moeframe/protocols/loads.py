"""How the tokens of a step fell on the experts: what observers are told. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LayerLoad"]


@dataclass(frozen=True, kw_only=True)
class LayerLoad:
    """The load of one MoE layer in one step, global: summed over all ranks and micro-batches."""

    layer: int
    """Index in the whole model: decoder layers from 0, then MTP modules."""
    mtp: bool
    """Whether the layer belongs to an MTP module."""
    tokens_per_expert: tuple[int, ...]
    """Assignments that the router chose, by global expert id; dropped ones included, padding not."""

    @property
    def mean(self) -> float:
        """Mean load of an expert."""
        return sum(self.tokens_per_expert) / len(self.tokens_per_expert)

    @property
    def relative(self) -> tuple[float, ...]:
        """Each expert's load as a multiple of the mean; all 1 where there is no load."""
        mean = self.mean
        return tuple(load / mean if mean else 1.0 for load in self.tokens_per_expert)

    @property
    def max_violation(self) -> float:
        """Largest load / mean - 1; 0 is perfect balance (Wang et al., arXiv 2408.15664, section 4)."""
        return max(self.relative) - 1.0
