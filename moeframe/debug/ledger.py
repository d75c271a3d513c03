"""The ledger: every collective of this rank, labelled, and compared with those of the other ranks before data moves.

What a dispatcher, a sharding strategy, the pipeline or the trainer issues on the thread of the job, in forward and
backward. Not seen: communication by a backend's own kernels, and what a checkpoint issues from its background thread.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from moeframe import trace
from moeframe.debug.agreement import Agreement, own_store
from moeframe.debug.collectives import Collective, read_collective
from moeframe.debug.entries import Entry, Site
from moeframe.model.counters import recomputing

__all__ = ["Ledger", "ledger"]

_KEPT: Final = 10_000
"""Entries that a ledger remembers; older ones are forgotten."""
_TORCH: Final = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
_PYTHON: Final = sysconfig.get_path("stdlib")


class Ledger:
    """The entries of this rank, newest last, and the names that it gives to modules."""

    def __init__(self, agreement: Agreement | None) -> None:
        self.entries: deque[Entry] = deque(maxlen=_KEPT)
        self._agreement = agreement
        self._counts: Counter[str] = Counter()
        self._names: dict[int, str] = {}
        self._modules: list[nn.Module] = []

    def know(self, model: nn.Module) -> None:
        """Call the modules of `model` by their names in it, in entries from now on."""
        self._modules.append(model)  # ids of modules that are gone may come again
        self._names |= {id(module): name for name, module in model.named_modules() if name}

    def write(self, file: Path) -> None:
        """Write one JSON object an entry; makes the folder."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{entry.to_json()}\n" for entry in self.entries), encoding="utf-8")

    def enter(self, collective: Collective) -> None:
        """Enter a collective that is about to start, once all ranks of its group agree on it.

        Raises:
            ContractError: they do not.
            JobFailedError: a rank does not come.
        """
        ranks = dist.get_process_group_ranks(collective.group)
        own, name = dist.get_rank(), collective.group.group_name
        pair = ""
        if collective.peer is not None:
            ends = (own, ranks[collective.peer])
            sender, receiver = ends if collective.op == "send" else ends[::-1]
            pair = f"{sender} to {receiver}, tag {collective.tag}"
        count = f"{name} {pair} {collective.op}" if pair else name
        self._counts[count] += 1
        entry = Entry(
            rank=own,
            sequence=self._counts[count],
            group=name,
            op=collective.op,
            operands=collective.operands,
            shapes=collective.shapes,
            send=collective.send,
            receive=collective.receive,
            site=self._site(),
        )
        self.entries.append(entry)
        if self._agreement is None or len(ranks) == 1:
            return
        if pair:
            self._agreement.message(entry, pair, sends=collective.op == "send")
        else:
            self._agreement.collective(entry, ranks)

    def _site(self) -> Site:
        """Say where the collective that is about to start comes from."""
        lines: list[str] = []
        inside_torch, unit = "", ""
        frame: FrameType | None = sys._getframe(2)  # noqa: SLF001  # inspect.stack reads files
        while frame is not None and (len(lines) < 2 or not unit):
            if not unit:
                unit = self._unit(frame)
            if _is_of_a_project(frame.f_code.co_filename):
                lines.append(_line(frame))
            elif not inside_torch and "_fsdp" in frame.f_code.co_filename:
                inside_torch = _line(frame)
            frame = frame.f_back
        place = trace.current()
        again = ", recomputed" if place.direction == "forward" and recomputing() else ""
        return Site(line=" < ".join(lines[:2]) or inside_torch, unit=unit, place=f"{place}{again}")

    def _unit(self, frame: FrameType) -> str:
        """Return the module that a frame belongs to, or whose parameters it moves; "" where it has none."""
        owner = frame.f_locals.get("self")
        if not isinstance(owner, nn.Module):
            # fully_shard's groups of parameters list their modules.
            listed = getattr(owner, "modules", None)
            if not isinstance(listed, tuple | list) or not listed or not isinstance(listed[0], nn.Module):
                return ""
            owner = listed[0]
        return self._names.get(id(owner), type(owner).__name__)


def _is_of_a_project(file: str) -> bool:
    """Return whether a file is neither Python's, nor torch's, nor the ledger's."""
    installed = "site-packages" in file or "dist-packages" in file
    return not file.startswith(("<", *_TORCH)) and (installed or not file.startswith(_PYTHON))


def _line(frame: FrameType) -> str:
    """Return a frame as ``package/module.py:12 in function``, the same on every machine."""
    module = str(frame.f_globals.get("__name__", ""))
    file = Path(frame.f_code.co_filename)
    parts = [file.name] if module in ("", "__main__") else [*module.split(".")[:-1], file.name]
    return f"{'/'.join(parts)}:{frame.f_lineno} in {frame.f_code.co_name}"


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves __init_subclass__ untyped
    """Sees operators before they run."""

    def __init__(self, entries: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._entries = entries

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # DTensor takes itself apart first, and comes back with collectives
        given = kwargs or {}
        collective = read_collective(func, args, given)
        if collective is not None:
            self._entries.enter(collective)
        return func(*args, **given)


class _Nobody:
    """A listener that does nothing: someone listens, so the trace marks backward phases too."""

    def enter(self, place: trace.Place) -> None:
        """Do nothing."""

    def leave(self, place: trace.Place) -> None:
        """Do nothing."""


@contextmanager
def ledger(limit_s: float) -> Iterator[Ledger]:
    """Keep a ledger of the collectives that this thread issues inside the block. Collective at the start.

    Every collective waits on the host until all ranks of its group have come. A message between two ranks waits for
    nobody: the rank that comes second compares. A rank that fails because it lost another one raises what the ledger of
    that one has found.

    Args:
        limit_s: how long to wait for a rank that does not come.
    """
    if not dist.is_initialized():
        entries = Ledger(None)
        with _watched(entries):
            yield entries
        return
    with own_store() as store:
        agreement = Agreement(store, limit_s)
        entries = Ledger(agreement)
        try:
            with _watched(entries):
                yield entries
        except RuntimeError as error:
            found = agreement.found()
            if found is None:
                raise
            raise found from error


@contextmanager
def _watched(entries: Ledger) -> Iterator[None]:
    with trace.listen(_Nobody()), _Watch(entries):
        yield
