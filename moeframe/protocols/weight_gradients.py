"""Weight gradients that run apart from the backward they belong to. Importable without torch.

The gradient of an input is what the rest of a backward waits for; that of a weight is wanted at the end of the step. A
schedule that has something to do in between calls the backward inside `postponing`; a module that can split its
backward hands the rest to `postpone`. Work that was postponed adds to ``.grad`` of leaves by itself: hooks of autograd
on gradients do not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Postponed", "postpone", "postponing"]


class Postponed:
    """What backwards have left to do."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []

    def __len__(self) -> int:
        """Return how many pieces wait."""
        return len(self._waiting)

    def add(self, work: Callable[[], None]) -> None:
        """Have `work` wait."""
        self._waiting.append(work)

    def run(self) -> None:
        """Do all of it, in order, and forget it."""
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()


_wanted: Postponed | None = None


@contextmanager
def postponing() -> Iterator[Postponed]:
    """Have weight gradients of the backwards inside the block wait in what is returned; the caller runs them."""
    global _wanted
    # Not bound to a thread: torch runs the backward of a GPU on a thread of its own.
    before, _wanted = _wanted, Postponed()
    try:
        yield _wanted
    finally:
        _wanted = before


def postpone(work: Callable[[], None]) -> bool:
    """Leave `work` to whoever postpones weight gradients; false: nobody does, so do it now."""
    if _wanted is None:
        return False
    _wanted.add(work)
    return True
