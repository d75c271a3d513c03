"""Routings that break dispatchers: uneven, hot, empty, odd, changing. The same on every rank, without a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

__all__ = ["WORKLOADS", "Step", "Workload", "build_steps"]

Step: TypeAlias = list[torch.Tensor]
"""Expert ids (T, K) int64 of one call on each rank; T may differ."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A named sequence of calls.

    `steps(ep, E, K, m)` gives the ids of each call; the number of tokens of every rank is a multiple of m. `ragged`:
    ranks pass different numbers of tokens. `drops`: ids contain -1.
    """

    name: str
    steps: Callable[[int, int, int, int], list[Step]]
    num_local_experts: int = 4
    top_k: int = 3
    hidden_size: int = 8
    ragged: bool = False
    drops: bool = False


def build_steps(workload: Workload, *, ep_size: int, top_k: int, token_multiple: int = 1) -> list[Step]:
    """Return the calls of a workload on `ep_size` ranks."""
    return workload.steps(ep_size, workload.num_local_experts * ep_size, top_k, token_multiple)


def _turning(num_tokens: int, experts: list[int], top_k: int, start: int = 0) -> torch.Tensor:
    """Deal `experts` round and round: (num_tokens, top_k) ids, distinct within a token."""
    assert top_k <= len(experts)
    places_TK = start + torch.arange(num_tokens)[:, None] * top_k + torch.arange(top_k)
    return torch.tensor(experts)[places_TK % len(experts)]


def _hot(num_tokens: int, hot: int, num_experts: int, top_k: int, start: int = 0) -> torch.Tensor:
    """Send every token to expert `hot`, and its other choices round the others."""
    others = [expert for expert in range(num_experts) if expert != hot]
    hot_T1 = torch.full((num_tokens, 1), hot)
    return hot_T1 if top_k == 1 else torch.cat([hot_T1, _turning(num_tokens, others, top_k - 1, start)], dim=1)


def _balanced(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    return [[_turning(8 * m, list(range(num_experts)), top_k, rank) for rank in range(ep)]]


def _hot_expert(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    return [[_hot(9 * m, 1, num_experts, top_k, rank) for rank in range(ep)]]


def _hot_rank(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    last = list(range(num_experts - num_experts // ep, num_experts))
    return [[_turning(6 * m, last, top_k, rank) for rank in range(ep)]]


def _ragged(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    return [[_turning((3 * rank + 1) * m, list(range(num_experts)), top_k, rank) for rank in range(ep)]]


def _empty_rank(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    sizes = [0 if rank == 0 else 5 * m for rank in range(ep)]
    return [[_turning(size, list(range(num_experts)), top_k) for size in sizes]]


def _no_tokens(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:  # noqa: ARG001  # one signature for all
    return [[torch.empty(0, top_k, dtype=torch.int64) for _ in range(ep)]]


def _empty_expert(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    return [[_turning(7 * m, list(range(1, num_experts)), top_k, rank) for rank in range(ep)]]


def _dropped(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    step = _balanced(ep, num_experts, top_k, m)[0]
    for rank, ids_TK in enumerate(step):
        ids_TK[rank % 2 :: 3, 0] = -1  # single choices
        ids_TK[1] = -1  # a whole token, as padding is
    return [step, [torch.full_like(ids_TK, -1) for ids_TK in step]]


def _rotating(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    return [[_hot(6 * m, step * 3 % num_experts, num_experts, top_k, rank) for rank in range(ep)] for step in range(4)]


def _burst(ep: int, num_experts: int, top_k: int, m: int) -> list[Step]:
    sizes = [2 * m, 40 * m, 0, 3 * m]
    return [[_turning(size, list(range(num_experts)), top_k, rank + size) for rank in range(ep)] for size in sizes]


WORKLOADS: Final = {
    workload.name: workload
    for workload in (
        Workload(name="balanced", steps=_balanced),
        Workload(name="hot_expert", steps=_hot_expert),
        Workload(name="hot_rank", steps=_hot_rank),
        Workload(name="ragged", steps=_ragged, ragged=True),
        Workload(name="empty_rank", steps=_empty_rank, ragged=True),
        Workload(name="no_tokens", steps=_no_tokens),
        Workload(name="empty_expert", steps=_empty_expert),
        Workload(name="odd_sizes", steps=_ragged, num_local_experts=6, top_k=7, hidden_size=10, ragged=True),
        Workload(name="single_choice", steps=_hot_expert, num_local_experts=2, top_k=1, hidden_size=2),
        Workload(name="dropped", steps=_dropped, drops=True),
        Workload(name="rotating", steps=_rotating),
        Workload(name="burst", steps=_burst),
    )
}
"""By name. `odd_sizes` has 7 choices where there are as many experts."""
