"""Counts the places where the host waits for a device, on a machine without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["HostSyncs"]

# Calls that never reach the dispatcher when the tensor is on the CPU already.
_COPIES = (torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.__array__)
_OPERATORS = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::equal",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
}


class HostSyncs:
    """Counts torch calls in a block that would make the host wait if the tensors were on a GPU.

    Counted: reading a tensor's values (`item`, `tolist`, `bool`, `cpu`, `numpy`) and operators whose output's size
    depends on values (`nonzero`, boolean masks, `repeat_interleave` without its size, `unique`, `bincount`). Not seen:
    synchronisation inside a backend's own kernels. `calls` names each in order. A call counts when it runs on the
    thread of the block, as a backward on the CPU does.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.calls: list[str] = []
        self.inside_a_copy = False
        self._modes = ExitStack()

    def __len__(self) -> int:
        """Return how many were counted."""
        return len(self.calls)

    def __enter__(self) -> Self:
        """Start to count."""
        self._modes.enter_context(_Functions(self))
        self._modes.enter_context(_Operators(self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Stop counting."""
        self._modes.close()


class _Functions(TorchFunctionMode):
    """Sees calls on tensors."""

    def __init__(self, syncs: HostSyncs) -> None:
        super().__init__()
        self._syncs = syncs

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # torch's signature
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _COPIES:
            return func(*args, **(kwargs or {}))
        self._syncs.calls.append(func.__name__)
        self._syncs.inside_a_copy = True
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._syncs.inside_a_copy = False


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
    """Sees operators, also those that run inside others."""

    def __init__(self, syncs: HostSyncs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._syncs = syncs

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],  # torch's signature
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._syncs.inside_a_copy and _reads_values(func, args, kwargs):
            self._syncs.calls.append(str(func))
        return func(*args, **kwargs)


def _reads_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    name = func._schema.name  # noqa: SLF001  # the only way to an operator's name
    if name in {"aten::index", "aten::index_put", "aten::index_put_"}:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if name == "aten::repeat_interleave":
        return kwargs.get("output_size") is None
    if name == "aten::_to_copy":
        device = kwargs.get("device")
        return device is not None and device.type == "cpu" and args[0].device.type != "cpu"
    return name in _OPERATORS
