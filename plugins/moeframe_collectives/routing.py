"""Arithmetic on expert ids: sorting, counting, checking. Nothing here moves a token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moeframe import trace
from moeframe.errors import ContractError

__all__ = ["Assignments", "require_same_tokens", "require_valid_ids", "sort_assignments"]


@dataclass(frozen=True, kw_only=True)
class Assignments:
    """The assignments of a call, sorted by global expert, then by token; the ones that are not sent come last.

    `order_N`: (T K,) int64, position in the flattened ids of each sorted assignment. `place_N`: its inverse.
    `counts_E`: (num_experts,) int64, assignments of each expert. All on the device of the ids.
    """

    order_N: torch.Tensor
    place_N: torch.Tensor
    counts_E: torch.Tensor


def sort_assignments(ids_TK: torch.Tensor, num_experts: int) -> Assignments:
    """Sort the assignments by expert, stably. No host sync; `ids_TK` (T, K) int64, -1 for not sent."""
    # Few key bits make radix sorts short; -1 sorts behind every expert.
    key_dtype = torch.int16 if num_experts < torch.iinfo(torch.int16).max else torch.int32
    keys_N = ids_TK.reshape(-1).masked_fill(ids_TK.reshape(-1) < 0, num_experts).to(key_dtype)
    sorted_N, order_N = torch.sort(keys_N, stable=True)
    # bincount would sync the host on a GPU
    experts_E = torch.arange(num_experts, dtype=key_dtype, device=ids_TK.device)
    ends_E = torch.searchsorted(sorted_N, experts_E, right=True)
    counts_E = torch.diff(ends_E, prepend=ends_E.new_zeros(1))
    place_N = torch.empty_like(order_N)
    place_N[order_N] = torch.arange(order_N.numel(), device=ids_TK.device)
    return Assignments(order_N=order_N, place_N=place_N, counts_E=counts_E)


def require_valid_ids(ids_TK: torch.Tensor, num_experts: int, top_k: int, *, values: bool) -> None:
    """Raise unless `ids_TK` is (T, top_k) int64 and, if `values`, its ids are in range and distinct within a token.

    Looking at values costs a host sync on a GPU.

    Raises:
        ContractError: names the token and the id.
    """
    if ids_TK.dtype != torch.int64 or ids_TK.dim() != 2 or ids_TK.shape[1] != top_k:
        raise ContractError(
            f"expert_ids_TK has dtype {ids_TK.dtype} and shape {tuple(ids_TK.shape)} ({trace.current()}): "
            f"it must be int64 of shape (T, {top_k})"
        )
    if not values or ids_TK.numel() == 0:
        return
    wrong_TK = (ids_TK < -1) | (ids_TK >= num_experts)
    ranked_TK = ids_TK.sort(dim=1).values
    repeated_TK = (ranked_TK[:, 1:] == ranked_TK[:, :-1]) & (ranked_TK[:, 1:] >= 0)
    if not bool(wrong_TK.any() | repeated_TK.any()):
        return
    if bool(wrong_TK.any()):
        token, choice = wrong_TK.nonzero()[0].tolist()
        raise ContractError(
            f"token {token}, choice {choice}: expert id {int(ids_TK[token, choice])} ({trace.current()}): "
            f"ids must be in 0 to {num_experts - 1}, or -1 for an assignment that is not sent"
        )
    token, choice = repeated_TK.nonzero()[0].tolist()
    raise ContractError(
        f"token {token} names expert {int(ranked_TK[token, choice])} twice ({trace.current()}): the experts of one "
        "token must be distinct, otherwise it is counted double. The router must choose its top-k without repetition"
    )


def require_same_tokens(x_TD: torch.Tensor, gates_TK: torch.Tensor, ids_shape: tuple[int, int]) -> None:
    """Raise unless tokens and gates belong to the ids that the layout was made for.

    Raises:
        ContractError: names both shapes, or the dtype of the gates.
    """
    if x_TD.shape[0] != ids_shape[0] or tuple(gates_TK.shape) != ids_shape:
        raise ContractError(
            f"x_TD {tuple(x_TD.shape)} and gates_TK {tuple(gates_TK.shape)} do not belong to this layout, which was "
            f"made for expert ids of shape {ids_shape} ({trace.current()})"
        )
    if gates_TK.dtype not in (torch.float32, torch.float64):
        raise ContractError(f"gates_TK has dtype {gates_TK.dtype} ({trace.current()}): gates travel in float32")
