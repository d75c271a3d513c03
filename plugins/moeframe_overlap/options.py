"""Options of the schedule, as a recipe gives them. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OverlapOptions"]


@dataclass(frozen=True, kw_only=True)
class OverlapOptions:
    """Options of `overlap_1f1b`."""

    split_backward: bool = True
    """Run the weight gradients of routed experts after their input gradients, beside dispatch backward, where the
    compute backend can."""
