"""What a sharding's results must be: one process, float64, torch's own AdamW; no sharding, no communication."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from moeframe.protocols.sharding import AdamWSettings, ModelPlan
from moeframe.testing.sharding_toy import VOCABULARY, Placement, Toy, plan_of

__all__ = ["SETTINGS", "Batches", "Reference", "norm_of"]

SETTINGS = AdamWSettings(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Token ids of every micro-batch, step and data rank; no two are alike."""

    data_ranks: int
    micro_batches: int = 3
    tokens: int = 2
    """Tokens of a rank in a micro-batch."""
    seldom: bool = True
    """Every micro-batch but the first uses the parameter `seldom`; else none does."""

    def ids(self, step: int, micro_batch: int, data_rank: int) -> torch.Tensor:
        """Return the ids (T,) of one rank."""
        start = (step * self.micro_batches + micro_batch) * self.data_ranks + data_rank
        return (torch.arange(self.tokens) * 3 + start * 2 + start // VOCABULARY).remainder(VOCABULARY)

    def uses_seldom(self, micro_batch: int) -> bool:
        """Whether a micro-batch uses the parameter `seldom`."""
        return self.seldom and micro_batch > 0

    def loss(self, logits_TV: torch.Tensor, ids_T: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of the loss: a sum over its tokens, divided by those of the whole step."""
        targets_T = (ids_T + 1) % VOCABULARY
        total = nn.functional.cross_entropy(logits_TV, targets_T, reduction="sum")
        return total / (self.tokens * self.micro_batches * self.data_ranks)


class Reference:
    """Trains the toy on the tokens of all ranks."""

    def __init__(self, num_experts: int, batches: Batches, *, stage: int = 0) -> None:
        """Fill the model as `plan_of` fills the shards of one."""
        self.batches = batches
        self._parts: dict[tuple[Batches, int, int], dict[str, torch.Tensor]] = {}
        placement = Placement(num_experts=num_experts)
        with torch.device("meta"):
            self.model = Toy(placement)
        self.plan: ModelPlan = plan_of(self.model, placement, torch.float64, stage=stage)
        for unit in self.plan.units:
            self.plan.materialize(unit.name, torch.device("cpu"))
        self._optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=SETTINGS.lr,
            betas=SETTINGS.betas,
            eps=SETTINGS.eps,
            weight_decay=SETTINGS.weight_decay,
            foreach=False,
        )

    @property
    def parameters(self) -> dict[str, torch.Tensor]:
        """Copies of the parameters, by name; experts by their global number."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def part(self, step: int, data_rank: int) -> dict[str, torch.Tensor]:
        """Return the gradients that the tokens of one rank give in a step; the whole gradient is their sum."""
        known = self._parts.get((self.batches, step, data_rank))
        if known is not None:
            return known
        self.model.zero_grad(set_to_none=False)
        for micro_batch in range(self.batches.micro_batches):
            self._loss(step, micro_batch, data_rank).backward()  # type: ignore[no-untyped-call]
        found = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
            for name, parameter in self.model.named_parameters()
        }
        self._parts[self.batches, step, data_rank] = found
        return found

    def gradients(self, step: int) -> dict[str, torch.Tensor]:
        """Return whole gradients of a step."""
        parts = [self.part(step, rank) for rank in range(self.batches.data_ranks)]
        return {name: torch.stack([part[name] for part in parts]).sum(0) for name in parts[0]}

    def loss(self, step: int) -> float:
        """Return the loss of a step over all ranks."""
        with torch.no_grad():
            return sum(
                float(self._loss(step, micro_batch, rank))
                for micro_batch in range(self.batches.micro_batches)
                for rank in range(self.batches.data_ranks)
            )

    def update(self, gradients: Tensors, lr: float) -> None:
        """Step AdamW with these gradients."""
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients[name].clone()
        self._optimizer.step()
        self._parts.clear()

    def moments(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return AdamW's state by parameter name, as `optimizer_state_dict` names it."""
        return {name: dict(self._optimizer.state[parameter]) for name, parameter in self.model.named_parameters()}

    def _loss(self, step: int, micro_batch: int, data_rank: int) -> torch.Tensor:
        ids_T = self.batches.ids(step, micro_batch, data_rank)
        logits_TV = self.model(ids_T, torch.float64, seldom=self.batches.uses_seldom(micro_batch))
        return self.batches.loss(logits_TV, ids_T)


def norm_of(gradients: Tensors) -> float:
    """Return the L2 norm over all gradients."""
    return float(torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt())
