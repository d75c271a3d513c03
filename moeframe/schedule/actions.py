"""What a rank does in one step, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Action", "Kind", "Plan"]

Kind = Literal["forward", "backward", "backward_input", "backward_weight"]


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work: `kind` for `micro_batch` in pipeline stage `stage`."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Return the usual short form: F, B, I (input gradient) or W (weight gradient), then stage and micro-batch."""
        letter = {"forward": "F", "backward": "B", "backward_input": "I", "backward_weight": "W"}[self.kind]
        return f"{self.stage}{letter}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The actions of every pipeline rank, in the order in which the rank runs them."""

    num_stages: int
    num_micro_batches: int
    ranks: tuple[tuple[Action, ...], ...]

    def __str__(self) -> str:
        """Return a line for each rank: its actions in their short form."""
        return "\n".join(f"rank {rank}: {' '.join(map(str, actions))}" for rank, actions in enumerate(self.ranks))
