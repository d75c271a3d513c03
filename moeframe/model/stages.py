"""Several pipeline stages of one rank, as one model to shard, optimize and save."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import nn

from moeframe.errors import ContractError
from moeframe.model.counters import Counters
from moeframe.model.deepseek_v3 import DeepSeekV3

__all__ = ["StagedModel"]


class StagedModel(nn.Module):
    """The stages of one rank, in one tree where every module has the name that it has in the whole model.

    `stages` holds them as modules of their own, which schedules call. They are no children: all that they are made of
    is in the tree already, under names that do not say in which stage.

    Args:
        parts: the stages, in order; they share one step state.

    Raises:
        ContractError: there is none, or the parts hold a layer twice or different step states.
    """

    def __init__(self, parts: Sequence[DeepSeekV3]) -> None:
        super().__init__()
        if not parts or any(part.step_state is not parts[0].step_state for part in parts):
            raise ContractError(f"The {len(parts)} stages of a rank must share one step state.")
        self.config = parts[0].config
        self.precision = parts[0].precision
        self.step_state = parts[0].step_state
        self.first_expert = parts[0].first_expert
        self.stage_names = tuple(f"stages.{number}" for number in range(len(parts)))
        self.__dict__["stages"] = nn.ModuleList(parts)
        self.embedding = _the_one([part.embedding for part in parts], "embedding")
        self.blocks = nn.ModuleDict()
        for part in parts:
            for layer, block in part.blocks.items():
                if layer in self.blocks:
                    raise ContractError(f"Two stages of this rank hold layer {layer}.")
                self.blocks[layer] = block
        self.norm = _the_one([part.norm for part in parts], "final norm")
        self.mtp = nn.ModuleDict({depth: module for part in parts for depth, module in part.mtp.items()})
        self.head = _the_one([part.head for part in parts], "head")

    @property
    def parts(self) -> list[DeepSeekV3]:
        """The stages, in order."""
        return [part for part in self.__dict__["stages"] if isinstance(part, DeepSeekV3)]

    def train(self, mode: bool = True) -> Self:  # noqa: FBT001, FBT002 - torch's signature
        """Set the mode of the stages as well."""
        for part in self.parts:
            part.train(mode)
        return super().train(mode)

    def take_counters(self) -> Counters:
        """Return what all stages counted since the last call; rows as in one stage."""
        taken = [part.take_counters() for part in self.parts]
        return Counters(
            tokens_per_expert=torch.stack([counters.tokens_per_expert for counters in taken]).sum(0),
            balance_sum=torch.stack([counters.balance_sum for counters in taken]).sum(0),
            dropped=torch.stack([counters.dropped for counters in taken]).sum(0),
        )

    def update_expert_bias(self, tokens_per_expert: torch.Tensor) -> None:
        """Move the correction bias of all routers one step towards balance, as `DeepSeekV3.update_expert_bias`."""
        for part in self.parts:
            part.update_expert_bias(tokens_per_expert)


def _the_one(modules: Sequence[nn.Module | None], what: str) -> nn.Module | None:
    found = [module for module in modules if module is not None]
    if len(found) > 1:
        raise ContractError(f"{len(found)} stages of this rank hold the {what}.")
    return found[0] if found else None
