"""What torch knows of a rank that its spans do not say: launched and finished collectives, and how far the device is.

Counters and the flight recorder live in torch's C++ and cost the training thread nothing. This module alone reads them;
tests/moeframe/debug/test_probes.py says what is relied upon.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d

from moeframe.debug.streams import StreamProgress
from moeframe.trace import Place
from moeframe.watch.device import DeviceState
from moeframe.watch.record import compact

__all__ = ["DeviceProgress", "TorchProbe", "on_compiling"]

_KEPT: Final = 4
"""Collectives of each group that are reported at least."""
_ENTRY: Final = ("collective_seq_id", "p2p_seq_id", "is_p2p", "input_sizes", "input_dtypes", "output_sizes", "state")


class _Passed(NamedTuple):
    """Behind the work of a phase. `launched`: when all of it was, seconds since the epoch."""

    number: int
    place: Place
    event: Any
    launched: float


class DeviceProgress:
    """How far a device is with the work that was launched: events behind it, recorded and polled, never waited for.

    Args:
        new_event: makes an event with `record(stream)` and `query()`, as `torch.cuda.Event` has them.
        stream_number: returns the number of the stream that work is launched on now.
        stream: returns that stream.
    """

    def __init__(
        self, new_event: Callable[[], Any], stream_number: Callable[[], int], stream: Callable[[], Any]
    ) -> None:
        self._new_event = new_event
        self._stream_number = stream_number
        self._stream = stream
        self._streams: dict[int, Any] = {}
        self._pending: dict[int, deque[_Passed]] = {}
        self._free: list[Any] = []
        self._done = 0

    def passed(self, number: int, place: Place) -> int:
        """Record an event behind all work launched so far, which ends span `number`; returns the stream."""
        stream = self._stream_number()
        if stream not in self._streams:
            self._streams[stream] = self._stream()
        event = self._free.pop() if self._free else self._new_event()
        event.record(self._streams[stream])
        self._pending.setdefault(stream, deque()).append(_Passed(number, place, event, time.time()))
        return stream

    def _take(self, pending: deque[_Passed]) -> None:
        """Take what the device has passed; on one stream all before the last passed event is passed too."""
        known = list(pending)
        passed = bisect_right(known, False, key=lambda one: not one.event.query())
        for _ in range(passed):
            one = pending.popleft()
            self._done = max(self._done, one.number)
            self._free.append(one.event)

    def running(self) -> DeviceState:
        """Return how far the device is. Of several streams, that of the oldest work counts.

        For one thread, which may be another than that of `passed`.
        """
        oldest: list[_Passed] = []
        for pending in list(self._pending.values()):
            self._take(pending)
            oldest += list(pending)[:1]
        first = min(oldest, key=lambda one: one.number, default=None)
        if first is None:
            return DeviceState(done=self._done)
        return DeviceState(done=self._done, number=first.number, place=first.place, launched=first.launched)


class TorchProbe:
    """The probe of a beacon.

    Args:
        device: of this rank; on a GPU every event of the trace gets one of the device's.
        fused: whether the dispatcher's own kernels communicate. Its library may then wait on the host and keep the
            interpreter, so that no thread polls events: the device itself writes how far it is.
    """

    def __init__(self, device: torch.device, *, fused: bool = False) -> None:
        self._progress: DeviceProgress | StreamProgress | None = None
        if device.type == "cuda":
            raw = torch._C._cuda_getCurrentRawStream  # noqa: SLF001  a tenth of the time of current_stream()
            index = device.index

            def number() -> int:
                return int(raw(index))

            self._progress = StreamProgress.of(number) if fused else None
            if self._progress is None:
                self._progress = DeviceProgress(torch.cuda.Event, number, lambda: torch.cuda.current_stream(index))

    def passed(self, number: int, place: Place) -> int:
        """Note that all work of a phase was launched; returns the stream, 0 on a CPU."""
        return 0 if self._progress is None else self._progress.passed(number, place)

    def device(self) -> DeviceState | None:
        """Return how far the device is, as `DeviceProgress.running`; None on a CPU."""
        return None if self._progress is None else self._progress.running()

    def record(self) -> int | None:
        """Return the descriptor of the record that the device writes; None where it does not."""
        return self._progress.descriptor if isinstance(self._progress, StreamProgress) else None

    def groups(self) -> list[dict[str, Any]]:
        """Return for each process group of this rank: name, description, ranks, number of collectives launched."""
        if not dist.is_initialized():
            return []
        found = []
        for group, members in list(distributed_c10d._world.pg_group_ranks.items()):  # noqa: SLF001
            if not isinstance(group, dist.ProcessGroup) or len(members) < 2:
                continue  # a group of others stands there as a number
            try:
                launched = group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # noqa: SLF001
            except RuntimeError:  # no collective yet
                launched = 0
            ranks = compact(sorted(members))
            what = _described(group.group_desc)
            found.append({"name": group.group_name, "what": what, "ranks": ranks, "launched": launched})
        return found

    def collectives(self) -> list[dict[str, Any]]:
        """Return the last collectives and messages of every group, oldest first."""
        by_group: dict[str, list[dict[str, Any]]] = {}
        entries = [entry for text in _traces() for entry in json.loads(text).get("entries", ())]
        for entry in entries:
            name, what = entry["process_group"]
            kept = {key: entry.get(key) for key in _ENTRY}
            kept |= {
                "group": name,
                "what": _described(what),
                "op": str(entry["profiling_name"]).partition(":")[2],
                "over": bool(entry.get("retired")),
                "created": entry["time_created_ns"] / 1e9,
            }
            by_group.setdefault(f"{name} {kept['is_p2p']}", []).append(kept)
        return [entry for entries in by_group.values() for entry in _telling(entries)]

    def flight(self) -> str:
        """Return torch's flight-recorder trace as JSON."""
        return next((text for text in _traces() if json.loads(text).get("entries")), "")


def _telling(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last entries of a group, and before them the first that is not over: what follows waits for it."""
    waiting = next((entry for entry in entries[:-_KEPT] if not entry["over"]), None)
    return [*([] if waiting is None else [waiting]), *entries[-_KEPT:]]


def _described(group: str) -> str:
    return "" if group == "undefined" else group


def on_compiling(tell: Callable[..., None]) -> None:
    """Call ``tell(yes=True)`` whenever torch.compile begins to compile, and ``tell(yes=False)`` when it is done."""
    from torch._dynamo.callback import on_compile_end, on_compile_start

    on_compile_start(lambda *_: tell(yes=True))
    on_compile_end(lambda *_: tell(yes=False))


def _traces() -> list[str]:
    """Return what torch's recorders hold: that of gloo, and that of NCCL where there is one."""
    found = []
    for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json"):
        dump = getattr(_distributed_c10d, name, None)
        if dump is not None:
            text = dump()
            found.append(text.decode() if isinstance(text, bytes) else text)
    return found
