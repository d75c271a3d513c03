"""Two streams of one device, with events between them; on a CPU one thread does both."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

__all__ = ["Lane", "Lanes", "Stamp"]

Lane: TypeAlias = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """When something is ready: an event of the lane that makes it; None where there are no streams."""

    lane: Lane
    event: torch.cuda.Event | None


class Lanes:
    """The current stream computes; another one, of higher priority, communicates.

    Communication keeps few multiprocessors busy, but must get them when a kernel of the other stream ends a block: so
    its priority.
    """

    def __init__(self, device: torch.device) -> None:
        self._streams: dict[Lane, torch.cuda.Stream] | None = None
        if device.type == "cuda":
            self._streams = {
                "compute": torch.cuda.current_stream(device),
                "communication": torch.cuda.Stream(device, priority=-1),  # type: ignore[no-untyped-call]
            }

    def on(self, lane: Lane) -> AbstractContextManager[object]:
        """Return a context in which work goes to the lane."""
        return nullcontext() if self._streams is None else torch.cuda.stream(self._streams[lane])

    def stamp(self, lane: Lane) -> Stamp:
        """Mark what the lane has been given so far."""
        if self._streams is None:
            return Stamp(lane, None)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._streams[lane])
        return Stamp(lane, event)

    def wait(self, lane: Lane, stamps: Iterable[Stamp]) -> None:
        """Have what the lane gets from here on wait for the stamps of the other."""
        if self._streams is None:
            return
        for stamp in stamps:
            if stamp.lane != lane and stamp.event is not None:
                self._streams[lane].wait_event(stamp.event)

    def lend(self, tensor: torch.Tensor, lane: Lane, owner: Lane) -> None:
        """Let a lane use a tensor that the other has allocated: its memory is not used anew before that is done."""
        if self._streams is not None and lane != owner:
            tensor.record_stream(self._streams[lane])

    def join(self, lane: Lane) -> None:
        """Have the lane wait for all that the other was given."""
        if self._streams is None:
            return
        other: Lane = "compute" if lane == "communication" else "communication"
        self._streams[lane].wait_stream(self._streams[other])
