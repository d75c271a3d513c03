"""Options of the schedules, as a recipe gives them. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InterleavedOptions", "ZeroBubbleOptions"]


@dataclass(frozen=True, kw_only=True)
class InterleavedOptions:
    """Options of `interleaved_1f1b`."""

    stages_per_rank: int = 2
    """Pipeline stages of each rank: more make the bubble smaller and send more."""


@dataclass(frozen=True, kw_only=True)
class ZeroBubbleOptions:
    """Options of `zero_bubble`."""

    stages_per_rank: int = 1
    """Pipeline stages of each rank: more make the bubble smaller and send more."""
