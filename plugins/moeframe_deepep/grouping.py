"""From one row per (token, rank) to one row per (token, local expert), and back. Nothing here moves between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

__all__ = ["Grouping"]


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """How the N tokens that arrived become R rows, grouped by local expert; in a group in the order of arrival.

    `choice_R`: position in the flattened (N, K) of each row. `token_R`: its token. `rows_by_token_R`: the rows of
    token 0, those of token 1, and so on; `starts_N`: where each token's begin. All int64, on the device.
    """

    shape_NK: tuple[int, int]
    choice_R: torch.Tensor
    token_R: torch.Tensor
    rows_by_token_R: torch.Tensor
    starts_N: torch.Tensor

    @classmethod
    def of(cls, local_ids_NK: torch.Tensor, counts: Sequence[int]) -> Grouping:
        """Work it out. No host sync.

        Args:
            local_ids_NK: (N, K) int64, local expert of each choice; -1 for one that belongs to another rank.
            counts: rows of each local expert.
        """
        num_tokens, top_k = local_ids_NK.shape
        num_rows, ids_N = sum(counts), local_ids_NK.reshape(-1)
        # Few key bits make radix sorts short; what is not here sorts last.
        small = torch.int16 if len(counts) < torch.iinfo(torch.int16).max else torch.int32
        by_expert = torch.sort(ids_N.masked_fill(ids_N < 0, len(counts)).to(small), stable=True).indices
        choice_R = by_expert[:num_rows]
        row_of_choice = torch.empty_like(by_expert)
        row_of_choice[by_expert] = torch.arange(by_expert.numel(), device=by_expert.device)
        here_first = torch.sort((ids_N < 0).to(torch.uint8), stable=True).indices[:num_rows]
        per_token_N = (local_ids_NK >= 0).sum(1)
        return cls(
            shape_NK=(num_tokens, top_k),
            choice_R=choice_R,
            token_R=choice_R // max(top_k, 1),
            rows_by_token_R=row_of_choice[here_first],
            starts_N=per_token_N.cumsum(0) - per_token_N,
        )

    def spread(self, tokens_ND: torch.Tensor) -> torch.Tensor:
        """Return the row of each choice, (R, D), from one row per token."""
        return tokens_ND.index_select(0, self.token_R)

    def pick(self, values_NK: torch.Tensor) -> torch.Tensor:
        """Return the value of each row, (R,), from one per choice."""
        return values_NK.reshape(-1).index_select(0, self.choice_R)

    def put(self, values_R: torch.Tensor) -> torch.Tensor:
        """Return one value per choice, (N, K), zero for those of other ranks. The transpose of `pick`."""
        values = values_R.new_zeros(self.shape_NK[0] * self.shape_NK[1])
        return values.index_copy_(0, self.choice_R, values_R).view(self.shape_NK)

    def total(self, rows_RD: torch.Tensor) -> torch.Tensor:
        """Sum the rows of each token, (N, D) in the dtype of the rows: float32 sums, rounded once. No atomics.

        The transpose of `spread`.
        """
        num_tokens, hidden = self.shape_NK[0], rows_RD.shape[1]
        if rows_RD.shape[0] == 0:
            return rows_RD.new_zeros(num_tokens, hidden)
        # The CUDA kernel adds bfloat16 rows in float32; the one for the CPU is given float32.
        source_RD = rows_RD if rows_RD.is_cuda else rows_RD.float()
        sums_ND = functional.embedding_bag(self.rows_by_token_R, source_RD, self.starts_N, mode="sum")
        return sums_ND.to(rows_RD.dtype)
