"""A stretch of a trace, coarse enough to draw and to keep. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from moeframe.bench.kernels import Kernel

__all__ = ["Slot", "read_slots", "slots", "stretch"]

_GAP_US: Final = 20.0
"""Kernels of one phase with no longer a pause between them make one slot: the pause is the host's, not another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Kernels of one phase, one after the other on one stream; microseconds. `phase` is "" outside of phases."""

    stream: int
    start: float
    end: float
    phase: str
    direction: str
    layer: int
    micro_batch: int

    def to_json(self) -> dict[str, Any]:
        """Return the fields."""
        return asdict(self)


def read_slots(data: Iterable[Mapping[str, Any]]) -> list[Slot]:
    """Read what `to_json` returned."""
    return [Slot(**slot) for slot in data]


def slots(kernels: Iterable[Kernel]) -> list[Slot]:
    """Join kernels to slots, in the order of their starts."""
    last: dict[int, Slot] = {}
    done: list[Slot] = []
    for kernel in kernels:
        slot = _slot(kernel)
        before = last.get(slot.stream)
        if before is not None and _same(before, slot) and slot.start - before.end <= _GAP_US:
            last[slot.stream] = _until(before, slot.end)
            continue
        if before is not None:
            done.append(before)
        last[slot.stream] = slot
    return sorted([*done, *last.values()], key=lambda slot: slot.start)


def stretch(kernels: Sequence[Kernel], micro_batch: int, num_layers: int = 2) -> list[Slot]:
    """Return what ran while a micro-batch went forward through its first MoE layers; times count from its beginning.

    Empty when that micro-batch dispatched nothing.
    """
    forward = [
        kernel
        for kernel in kernels
        if kernel.place.micro_batch == micro_batch and kernel.place.direction == "forward" and kernel.place.layer >= 0
    ]
    layers = sorted({kernel.place.layer for kernel in forward if kernel.place.phase == "dispatch"})[:num_layers]
    own = [kernel for kernel in forward if kernel.place.layer in layers]
    if not own:
        return []
    begin, end = min(kernel.start for kernel in own), max(kernel.end for kernel in own)
    return [*_shifted(slots(kernel for kernel in kernels if begin <= kernel.start < end), begin)]


def _slot(kernel: Kernel) -> Slot:
    place = kernel.place
    return Slot(
        stream=kernel.stream,
        start=kernel.start,
        end=kernel.end,
        phase=place.phase,
        direction=place.direction,
        layer=place.layer,
        micro_batch=place.micro_batch,
    )


def _same(left: Slot, right: Slot) -> bool:
    keys = ("phase", "direction", "layer", "micro_batch")
    return all(getattr(left, key) == getattr(right, key) for key in keys)


def _until(slot: Slot, end: float) -> Slot:
    return Slot(**{**asdict(slot), "end": max(slot.end, end)})


def _shifted(found: Iterable[Slot], begin: float) -> Iterator[Slot]:
    for slot in found:
        yield Slot(**{**asdict(slot), "start": round(slot.start - begin, 1), "end": round(slot.end - begin, 1)})
