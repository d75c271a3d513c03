"""What collective an operator of torch is: which group, what must agree between its ranks, who sends how much to whom.

This module alone reads torch's collective operators (`c10d`, and `_c10d_functional` that DTensor uses), which torch
does not document; tests/moeframe/debug/test_collectives.py says what is relied upon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import _resolve_process_group  # type: ignore[attr-defined]

__all__ = ["Collective", "read_collective"]


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A call of a collective operator on this rank.

    `op`: its name with its root; the reduction is hidden from Python. `agreed`: tensors that every rank of the group
    gives in the same dtype and number of elements. `row`: the same for the rows of an exchange with splits, `send` and
    `receive` in rows by rank.
    `peer`: the other rank in the group of a message, whose `tag` it has; None for a true collective.
    """

    op: str
    group: ProcessGroup
    agreed: tuple[torch.Tensor, ...] = ()
    row: tuple[torch.Tensor, int] | None = None
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    peer: int | None = None
    tag: int = 0

    @property
    def operands(self) -> tuple[str, ...]:
        """Dtype and number of elements of what must agree."""
        found = [f"{_dtype(tensor)} x {tensor.numel()}" for tensor in self.agreed]
        if self.row is not None:
            found.append(f"{_dtype(self.row[0])} x {self.row[1]} a row")
        return tuple(found)

    @property
    def shapes(self) -> tuple[str, ...]:
        """Dtype and shape of the tensors."""
        tensors = [*self.agreed, *([self.row[0]] if self.row is not None else [])]
        return tuple(f"{_dtype(tensor)} {list(tensor.shape)}" for tensor in tensors)


_Arguments = Mapping[str, Any]

# Where each operator of c10d has what must agree between ranks.
_AGREED: Final[Mapping[str, tuple[str, str]]] = {
    "allreduce_": ("all_reduce", "tensors"),
    "allreduce_coalesced_": ("all_reduce_coalesced", "tensors"),
    "broadcast_": ("broadcast", "tensors"),
    "reduce_": ("reduce", "tensors"),
    "_allgather_base_": ("all_gather", "input_tensor"),
    "allgather_": ("all_gather", "input_tensors"),
    "allgather_coalesced_": ("all_gather_coalesced", "input_list"),
    "allgather_into_tensor_coalesced_": ("all_gather_coalesced", "inputs"),
    "_reduce_scatter_base_": ("reduce_scatter", "output_tensor"),
    "reduce_scatter_": ("reduce_scatter", "output_tensors"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter_coalesced", "outputs"),
    "gather_": ("gather", "input_tensors"),
    "scatter_": ("scatter", "output_tensors"),
    "send": ("send", "tensors"),
    "recv_": ("recv", "tensors"),
}
_FUNCTIONAL: Final[Mapping[str, tuple[str, str]]] = {
    "all_reduce": ("all_reduce", "input"),
    "all_reduce_": ("all_reduce", "input"),
    "all_reduce_coalesced": ("all_reduce_coalesced", "inputs"),
    "all_reduce_coalesced_": ("all_reduce_coalesced", "inputs"),
    "broadcast": ("broadcast", "input"),
    "broadcast_": ("broadcast", "input"),
    "all_gather_into_tensor": ("all_gather", "input"),
    "all_gather_into_tensor_out": ("all_gather", "input"),
    "all_gather_into_tensor_coalesced": ("all_gather_coalesced", "inputs"),
    "reduce_scatter_tensor": ("reduce_scatter", "input"),
    "reduce_scatter_tensor_out": ("reduce_scatter", "input"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_coalesced", "inputs"),
}
_BARRIERS: Final = ("barrier", "monitored_barrier_")


def read_collective(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Collective | None:
    """Return the collective that an operator is, None for all others.

    A receive from any source cannot be compared with anything and is left out.

    Raises:
        NotImplementedError: a collective of a kind that this module does not know.
    """
    namespace, _, name = func._schema.name.partition("::")  # noqa: SLF001  # the only way to an operator's name
    if namespace not in _READERS or name == "recv_any_source_":
        return None
    named = {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)}  # noqa: SLF001
    given = {**named, **kwargs}
    if "process_group" not in given and "group_name" not in given:
        return None  # such as waiting for a result
    collective = _READERS[namespace](name, given)
    if collective is None:
        raise NotImplementedError(
            f"The ledger does not know the operator {func._schema.name} of torch {torch.__version__}. "  # noqa: SLF001
            "Use debug.ledger=false."
        )
    return collective


def _read_c10d(name: str, given: _Arguments) -> Collective | None:
    group = ProcessGroup.unbox(given["process_group"])
    if name in _BARRIERS:
        return Collective(op="barrier", group=group)
    if name == "alltoall_base_":
        return _exchange(
            group, given["input"], given["output"], given["input_split_sizes"], given["output_split_sizes"]
        )
    if name == "alltoall_":
        sent, received = given["input_tensors"], given["output_tensors"]
        return Collective(
            op="all_to_all",
            group=group,
            row=(sent[0], 1),
            send=tuple(tensor.numel() for tensor in sent),
            receive=tuple(tensor.numel() for tensor in received),
        )
    if name not in _AGREED:
        return None
    op, where = _AGREED[name]
    return Collective(
        op=f"{op} with root {given['root_rank']}" if "root_rank" in given else op,
        group=group,
        agreed=_tensors(given[where]),
        peer=given.get("dst", given.get("src")),
        tag=given.get("tag", 0),
    )


def _read_functional(name: str, given: _Arguments) -> Collective | None:
    named = given["group_name"]
    resolve: Callable[[Any], Any] = _resolve_process_group  # its own type for names came with torch 2.12
    group = resolve(named) if isinstance(named, str) else ProcessGroup.unbox(named)
    if name == "all_to_all_single":
        sent = given["input"]
        receives = given["output_split_sizes"]
        return _exchange(group, sent, sent, given["input_split_sizes"], receives)
    if name not in _FUNCTIONAL:
        return None
    op, where = _FUNCTIONAL[name]
    if "src" in given:
        op = f"{op} with root {given['src']}"
    return Collective(op=op, group=group, agreed=_tensors(given[where]))


_READERS: Final[Mapping[str, Callable[[str, _Arguments], Collective | None]]] = {
    "c10d": _read_c10d,
    "_c10d_functional": _read_functional,
}


def _exchange(
    group: ProcessGroup, sent: torch.Tensor, received: torch.Tensor, sends: Sequence[int], receives: Sequence[int]
) -> Collective:
    """Return an exchange of rows; without splits every rank gets an equal share."""
    size = group.size()
    return Collective(
        op="all_to_all",
        group=group,
        row=(sent, math.prod(sent.shape[1:])),
        send=tuple(sends) or (sent.shape[0] // size,) * size,
        receive=tuple(receives) or (received.shape[0] // size,) * size,
    )


def _tensors(value: Any) -> tuple[torch.Tensor, ...]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
