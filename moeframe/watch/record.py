"""The bytes of a beacon: a small file that its rank maps into memory and anybody may read.

A header, written once, and two kinds of records, each in two slots that take turns: `Moment` (where the rank is; the
rank's own threads write it at every span) and the pulse (JSON; a thread of its own writes it twice a second). A record
carries its number and a checksum, so that a reader tells a torn one and takes the other slot. A process that is killed
leaves at least one whole record of each kind behind.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from moeframe.trace import Phase, Place

__all__ = [
    "MOMENT_SIZE",
    "PLACE_SIZE",
    "SIZE",
    "VERSION",
    "BeaconError",
    "Event",
    "Life",
    "Moment",
    "compact",
    "expand",
    "moment_slot",
    "pack_header",
    "pack_moment",
    "pack_place",
    "pack_pulse",
    "place_fields",
    "pulse_slot",
    "read_header",
    "read_moment",
    "read_pulse",
    "unpack_place",
]

VERSION: Final = 1
_MAGIC: Final = b"moeframe-beacon\0"
_HEADER: Final = struct.Struct("<16sII")  # magic, version, length of the JSON behind it
_HEADER_SIZE: Final = 1024
_PLACE: Final = struct.Struct("<iiiiBB")
PLACE_SIZE: Final = _PLACE.size
_MOMENT: Final = struct.Struct("<QdqdIQBB")  # two places follow
_BODY_SIZE: Final = _MOMENT.size + 2 * _PLACE.size
_CRC: Final = struct.Struct("<I")
MOMENT_SIZE: Final = _BODY_SIZE + _CRC.size
_MOMENT_STRIDE: Final = 128
_PULSE: Final = struct.Struct("<QII")  # number, length, checksum of the JSON behind it
_PULSE_STRIDE: Final = 32 * 1024
_PULSES_AT: Final = _HEADER_SIZE + 2 * _MOMENT_STRIDE
SIZE: Final = _PULSES_AT + 2 * _PULSE_STRIDE

Event: TypeAlias = Literal["", "entered", "left"]
Life: TypeAlias = Literal["starting", "running", "compiling", "ending", "finished", "failed"]

_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
_PHASE_NUMBER: Final = {phase: number for number, phase in enumerate(_PHASES)}
_EVENTS: Final[tuple[Event, ...]] = get_args(Event)
_EVENT_NUMBER: Final = {event: number for number, event in enumerate(_EVENTS)}
_LIVES: Final[tuple[Life, ...]] = get_args(Life)
_LIFE_NUMBER: Final = {life: number for number, life in enumerate(_LIVES)}


class BeaconError(ValueError):
    """A file is no beacon of this version, or holds no whole record."""


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Where a rank was when it last passed a span.

    `count` rises with every event. `at`: the host's monotonic clock, seconds. `stream`: of the device, 0 on a CPU.
    `median_step_s`: of its last steps, 0 before the second. `steps`: begun since this process started. `passed`:
    beginnings and ends of phases since then, which ranks of one pipeline stage have alike. `place`: entered or left;
    `finished`: the last one that was left (a backward phase is left where the next place is entered).
    """

    count: int
    at: float
    stream: int
    median_step_s: float
    steps: int
    passed: int
    place: Place
    finished: Place
    event: Event
    life: Life


def pack_header(values: Mapping[str, Any]) -> bytes:
    """Return the header of a beacon with `values` as JSON; at most 1000 bytes of it."""
    text = json.dumps(values).encode()
    assert _HEADER.size + len(text) + _CRC.size <= _HEADER_SIZE, "the header of a beacon is too long"
    whole = _HEADER.pack(_MAGIC, VERSION, len(text)) + text
    return (whole + _CRC.pack(zlib.crc32(whole))).ljust(_HEADER_SIZE, b"\0")


def read_header(data: bytes) -> dict[str, Any]:
    """Return the values of a header.

    Raises:
        BeaconError: it is none, not whole, or of another version.
    """
    if len(data) < _HEADER_SIZE or not data.startswith(_MAGIC):
        raise BeaconError("it is no beacon, or one that is still being made")
    _, version, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise BeaconError(f"it is a beacon of format {version}; this version of moeframe reads format {VERSION}")
    end = _HEADER.size + length
    if end + _CRC.size > _HEADER_SIZE or _CRC.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise BeaconError("its header is damaged")
    if len(data) < SIZE:
        raise BeaconError(f"it is cut off, or still being made: it has {len(data)} of {SIZE} bytes")
    values: dict[str, Any] = json.loads(data[_HEADER.size : end])
    return values


def compact(ranks: Sequence[int]) -> list[int] | dict[str, int]:
    """Return ascending ranks in few words when they are evenly spaced, as those of a mesh are."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 1
    if list(ranks) == list(range(ranks[0], ranks[0] + step * len(ranks), step)):
        return {"first": ranks[0], "step": step, "number": len(ranks)}
    return list(ranks)


def expand(ranks: Sequence[int] | Mapping[str, int]) -> tuple[int, ...]:
    """Return what `compact` was given."""
    if isinstance(ranks, Mapping):
        first, step = ranks["first"], ranks["step"]
        return tuple(range(first, first + step * ranks["number"], step))
    return tuple(ranks)


def place_fields(place: Place) -> list[Any]:
    """Return a place as JSON types, in the order of its fields."""
    return [place.step, place.micro_batch, place.stage, place.layer, place.phase, place.direction]


def moment_slot(count: int) -> int:
    """Return the offset of the slot for a moment."""
    return _HEADER_SIZE + (count & 1) * _MOMENT_STRIDE


def pack_place(place: Place) -> bytes:
    """Return the bytes of a place, for `pack_moment`."""
    return _PLACE.pack(
        place.step,
        place.micro_batch,
        place.stage,
        place.layer,
        _PHASE_NUMBER[place.phase],
        place.direction == "backward",
    )


def pack_moment(  # noqa: PLR0913, PLR0917  runs at every span: no object is made for it
    count: int,
    at: float,
    stream: int,
    median_step_s: float,
    steps: int,
    passed: int,
    event: Event,
    life: Life,
    place: bytes,
    finished: bytes,
) -> bytes:
    """Return the bytes of a `Moment`."""
    numbers = _MOMENT.pack(count, at, stream, median_step_s, steps, passed, _EVENT_NUMBER[event], _LIFE_NUMBER[life])
    body = numbers + place + finished
    return body + _CRC.pack(zlib.crc32(body))


def unpack_place(data: bytes, offset: int) -> Place:
    """Return the place whose bytes begin at an offset. Raises IndexError where its phase is of a newer version."""
    step, micro_batch, stage, layer, phase, backward = _PLACE.unpack_from(data, offset)
    return Place(
        step=step,
        micro_batch=micro_batch,
        stage=stage,
        layer=layer,
        phase=_PHASES[phase],
        direction="backward" if backward else "forward",
    )


def read_moment(data: bytes) -> Moment | None:
    """Return the newest whole moment of a beacon; None when both are torn or none was written.

    Raises:
        BeaconError: it names a phase, an event or a life that this version does not know.
    """
    bodies = []
    for slot in (moment_slot(0), moment_slot(1)):
        body = data[slot : slot + _BODY_SIZE]
        (crc,) = _CRC.unpack_from(data, slot + _BODY_SIZE)
        if crc == zlib.crc32(body) and any(body):
            bodies.append(body)
    if not bodies:
        return None
    body = max(bodies, key=lambda body: _MOMENT.unpack_from(body)[0])
    count, at, stream, median, steps, passed, event, life = _MOMENT.unpack_from(body)
    try:
        return Moment(
            count=count,
            at=at,
            stream=stream,
            median_step_s=median,
            steps=steps,
            passed=passed,
            place=unpack_place(body, _MOMENT.size),
            finished=unpack_place(body, _MOMENT.size + _PLACE.size),
            event=_EVENTS[event],
            life=_LIVES[life],
        )
    except IndexError as error:
        raise BeaconError("its record is of a newer version of moeframe") from error


def pulse_slot(number: int) -> int:
    """Return the offset of the slot for a pulse."""
    return _PULSES_AT + (number & 1) * _PULSE_STRIDE


def pack_pulse(number: int, values: Mapping[str, Any]) -> bytes:
    """Return the bytes of a pulse; what is too long for a slot loses its oldest collectives."""
    kept = dict(values)
    while True:
        text = json.dumps(kept, separators=(",", ":")).encode()
        if _PULSE.size + len(text) <= _PULSE_STRIDE:
            return _PULSE.pack(number, len(text), zlib.crc32(text)) + text
        shortened = list(kept.get("collectives", ()))[1:]
        kept = {**kept, "collectives": shortened} if shortened else {"at": kept.get("at"), "too_long": True}


def read_pulse(data: bytes) -> dict[str, Any] | None:
    """Return the newest whole pulse of a beacon, None if there is none."""
    found: list[tuple[int, bytes]] = []
    for slot in (pulse_slot(0), pulse_slot(1)):
        number, length, crc = _PULSE.unpack_from(data, slot)
        text = data[slot + _PULSE.size : slot + _PULSE.size + length]
        if number and length <= _PULSE_STRIDE - _PULSE.size and crc == zlib.crc32(text):
            found.append((number, text))
    if not found:
        return None
    values: dict[str, Any] = json.loads(max(found)[1])
    return values
