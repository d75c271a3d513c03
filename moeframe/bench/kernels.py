"""Which kernels ran when, on which stream, and for which phase: from a trace of torch.profiler. No torch here.

A kernel belongs to the span in which the host launched it. Spans are noted by a listener of `moeframe.trace`; one mark
in both clocks, the listener's and the profiler's, puts them on one time line.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from moeframe.errors import ContractError
from moeframe.trace import Place

__all__ = ["MARK", "Kernel", "SpanLog", "read_kernels"]

MARK: Final = "moeframe clock"
"""Name of the profiler's annotation that begins when `SpanLog.mark` is called."""
_ON_DEVICE: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_ON_HOST: Final = frozenset({"cuda_runtime", "cuda_driver"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One piece of work of the device; microseconds. `place` is where the host launched it."""

    name: str
    stream: int
    start: float
    end: float
    place: Place


class SpanLog:
    """A listener that notes at what time which span is the innermost."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._places: list[Place] = []
        self._open: list[Place] = []
        self._marked = 0

    def mark(self) -> None:
        """Note the time; call it just after the profiler's annotation `MARK` began. The last call counts."""
        self._marked = time.perf_counter_ns()

    def enter(self, place: Place) -> None:
        """Note it."""
        self._open.append(place)
        self._note(place)

    def leave(self, place: Place) -> None:
        """Note that the one around it is innermost again."""
        if place in self._open:
            self._open.remove(place)
        self._note(self._open[-1] if self._open else Place())

    def _note(self, place: Place) -> None:
        self._times.append(time.perf_counter_ns())
        self._places.append(place)

    def places(self, marked_us: float, times_us: Iterable[float]) -> Iterator[Place]:
        """Yield the innermost span at each of the profiler's times, given its time of the mark."""
        for time_us in times_us:
            found = bisect_right(self._times, self._marked + (time_us - marked_us) * 1e3)
            yield self._places[found - 1] if found else Place()


def read_kernels(trace: Mapping[str, Any], spans: SpanLog) -> list[Kernel]:
    """Return the kernels of a trace in Chrome's format, in the order of their starts.

    Raises:
        ContractError: the trace has no mark, or no kernel.
    """
    events: Sequence[Mapping[str, Any]] = trace["traceEvents"]
    marked = [event["ts"] for event in events if event.get("name") == MARK and event.get("cat") == "user_annotation"]
    launched: dict[int, float] = {}
    ran: list[tuple[Mapping[str, Any], int]] = []
    for event in events:
        correlation = event.get("args", {}).get("correlation")
        if event.get("cat") in _ON_HOST and correlation is not None:
            launched[correlation] = float(event["ts"])
        elif event.get("cat") in _ON_DEVICE:
            ran.append((event, correlation))
    known = [(event, launched[correlation]) for event, correlation in ran if correlation in launched]
    if not marked or not known:
        raise ContractError(
            f"The profiler's trace of {len(events)} events has {len(marked)} marks of the clock and {len(known)} "
            f"kernels with a launch (of {len(ran)} kernels); it needs both. Is another profiler attached to the GPU?"
        )
    places = spans.places(float(max(marked)), [at for _, at in known])
    kernels = [
        Kernel(
            name=str(event["name"]),
            stream=int(event["args"]["stream"]),
            start=float(event["ts"]),
            end=float(event["ts"]) + float(event["dur"]),
            place=place,
        )
        for (event, _), place in zip(known, places, strict=True)
    ]
    return sorted(kernels, key=lambda kernel: kernel.start)
