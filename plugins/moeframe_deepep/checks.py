"""What a caller must keep to, checked before the library sees it."""

from __future__ import annotations

import torch

from moeframe import trace
from moeframe.errors import ContractError

__all__ = ["grad_anchor", "require_ids", "require_rows", "require_tokens"]


def require_ids(ids_TK: torch.Tensor, num_experts: int, top_k: int, max_tokens: int, *, values: bool) -> None:
    """Raise unless the ids are (T, top_k) int64 with T in 0 to max_tokens and, if `values`, in range and distinct.

    Looking at values costs a host sync on a GPU.

    Raises:
        ContractError: names shape, or token and expert.
    """
    if ids_TK.dtype != torch.int64 or ids_TK.dim() != 2 or ids_TK.shape[1] != top_k:
        raise ContractError(
            f"expert_ids_TK has dtype {ids_TK.dtype} and shape {tuple(ids_TK.shape)} ({trace.current()}): "
            f"it must be int64 of shape (T, {top_k})"
        )
    if ids_TK.shape[0] > max_tokens:
        raise ContractError(
            f"expert_ids_TK has {ids_TK.shape[0]} tokens ({trace.current()}): the buffers were made for max_tokens = "
            f"{max_tokens} of the dispatcher's context"
        )
    if not values or ids_TK.numel() == 0:
        return
    outside_TK = (ids_TK < -1) | (ids_TK >= num_experts)
    sorted_TK = ids_TK.sort(dim=1).values
    twice_TK = (sorted_TK[:, 1:] == sorted_TK[:, :-1]) & (sorted_TK[:, 1:] >= 0)
    if not bool(outside_TK.any() | twice_TK.any()):
        return
    if bool(outside_TK.any()):
        token, choice = outside_TK.nonzero()[0].tolist()
        raise ContractError(
            f"token {token}, choice {choice}: expert id {int(ids_TK[token, choice])} ({trace.current()}): ids must be "
            f"in 0 to {num_experts - 1}, or -1 for an assignment that is not sent"
        )
    token, place = twice_TK.nonzero()[0].tolist()
    raise ContractError(
        f"token {token} names expert {int(sorted_TK[token, place])} twice ({trace.current()}): a row is sent once to a "
        "rank and computed once by an expert, so the experts of a token must be distinct"
    )


def require_tokens(x_TD: torch.Tensor, gates_TK: torch.Tensor, ids_shape: tuple[int, int], hidden_size: int) -> None:
    """Raise unless tokens and gates belong to the ids of a layout and have the dtypes of the wire.

    Raises:
        ContractError: names shapes or dtype.
    """
    if tuple(x_TD.shape) != (ids_shape[0], hidden_size) or tuple(gates_TK.shape) != ids_shape:
        raise ContractError(
            f"x_TD {tuple(x_TD.shape)} and gates_TK {tuple(gates_TK.shape)} do not belong to this layout, which was "
            f"made for expert ids of shape {ids_shape} and hidden size {hidden_size} ({trace.current()})"
        )
    if x_TD.dtype != torch.bfloat16 or gates_TK.dtype != torch.float32:
        raise ContractError(
            f"x_TD has dtype {x_TD.dtype} and gates_TK {gates_TK.dtype} ({trace.current()}): the kernels send rows in "
            "bfloat16 and gates in float32"
        )


def require_rows(rows_RD: torch.Tensor, given_RD: torch.Tensor) -> None:
    """Raise unless the experts' output fits what they were given and, with gradients on, hangs in the graph.

    Raises:
        ContractError: names both shapes and dtypes, or says that the backward would not run on this rank.
    """
    if rows_RD.shape != given_RD.shape or rows_RD.dtype != given_RD.dtype:
        raise ContractError(
            f"the experts returned {rows_RD.dtype} rows of shape {tuple(rows_RD.shape)} ({trace.current()}) and were "
            f"given {given_RD.dtype} {tuple(given_RD.shape)}: combine takes one row for each that dispatch gave, in "
            "order"
        )
    if torch.is_grad_enabled() and given_RD.requires_grad and not rows_RD.requires_grad:
        raise ContractError(
            f"the experts' output of shape {tuple(rows_RD.shape)} has no gradient ({trace.current()}): this rank would "
            "take no part in the backward, and the other ranks of its group would wait for it. Compute on zero rows "
            "too, instead of returning a new empty tensor"
        )


def grad_anchor() -> torch.Tensor:
    """Return an input that makes an autograd function take part in every backward, as all ranks or none must."""
    return torch.empty(0, requires_grad=torch.is_grad_enabled())
