"""Options of `megatron_fsdp`, as a recipe gives them. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["MegatronFsdpOptions"]


@dataclass(frozen=True, kw_only=True)
class MegatronFsdpOptions:
    """Options of `megatron_fsdp`."""

    zero: Literal[1, 2, 3] = 3
    """What is sharded: 1 optimizer state, 2 gradients too, 3 parameters too."""
    bucket_elements: int = 40_000_000
    """With zero 1 and 2: parameters gather, and gradients are summed, in buckets of about this many elements. With zero
    3 a bucket is what a unit of the model has of one dtype, experts apart."""

    def require_legal(self) -> None:
        """Refuse sizes that mean nothing.

        Raises:
            ValueError: with the legal values.
        """
        if self.bucket_elements < 1:
            raise ValueError(f"bucket_elements = {self.bucket_elements}; a bucket has 1 element or more.")
