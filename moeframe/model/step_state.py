"""What the layers must know of the running step before its first backward."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["StepState"]


@dataclass(slots=True, kw_only=True)
class StepState:
    """Token counts of the global batch, agreed by all ranks; one object is shared by a model part and its stages.

    Every loss is divided by its own global number of tokens, so that gradients are plain sums over ranks and
    micro-batches. Before `begin` no balance gradient is injected, and a stage refuses to compute a loss.
    """

    loss_tokens: int | None = None
    """Targets that count in the cross-entropy; None before the first `begin`."""
    mtp_tokens: tuple[int, ...] = ()
    """The same for each MTP depth."""
    valid_tokens: int = 0
    """Input tokens that are not padding; the balance loss is weighted by them."""
    counting: bool = True
    """Layers count tokens and balance loss. Never in evaluation mode, and never twice for recomputed layers."""

    def begin(self, *, loss_tokens: int, mtp_tokens: tuple[int, ...], valid_tokens: int) -> None:
        """Set the counts of the step that starts now."""
        self.loss_tokens = loss_tokens
        self.mtp_tokens = mtp_tokens
        self.valid_tokens = valid_tokens

    @property
    def balance_scale(self) -> float:
        """Factor of a sum over tokens of the balance loss."""
        return 1.0 / self.valid_tokens if self.valid_tokens else 0.0
