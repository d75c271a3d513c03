"""Communication buffers of this process: one for each group and shape, shared by who asks for the same, freed last."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch.distributed import ProcessGroup

__all__ = ["Lease", "lease"]


class _Buffer(Protocol):
    def close(self) -> None:
        """Free the memory; on every rank of the group, in the same order."""


B = TypeVar("B", bound=_Buffer)


@dataclass
class _Held:
    """A buffer and how many use it. The group stays referenced, so that its identity is not given to another."""

    group: ProcessGroup
    buffer: Any
    users: int = 0


_held: dict[tuple[int, Hashable], _Held] = {}


@dataclass
class Lease(Generic[B]):
    """The right to use a buffer until `give_back`. `is_new`: it was made for this lease."""

    key: tuple[int, Hashable]
    buffer: B
    is_new: bool
    _open: bool = True

    def give_back(self) -> None:
        """End the use; the last user's call frees the buffer. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        held = _held[self.key]
        held.users -= 1
        if held.users == 0:
            del _held[self.key]
            held.buffer.close()


def lease(group: ProcessGroup, shape: Hashable, make: Callable[[], B]) -> Lease[B]:
    """Return a lease of the buffer of that group and shape, made if there is none.

    Every rank of the group asks and gives back in the same order.
    """
    key = (id(group), shape)
    is_new = key not in _held
    if is_new:
        _held[key] = _Held(group=group, buffer=make())
    _held[key].users += 1
    return Lease(key=key, buffer=_held[key].buffer, is_new=is_new)
