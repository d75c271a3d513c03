"""How far a device is, and the memory in which a device says so itself.

Events are polled by a Python thread. A library that waits on the host and keeps the interpreter meanwhile, as fused
dispatchers may, leaves none to poll. So the device writes the number of each end of a phase that it reaches, by writes
in stream order, into memory that the monitor can read as well: an anonymous file, which ends with its process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeframe.trace import Place
from moeframe.watch.record import PLACE_SIZE, pack_place, unpack_place

__all__ = ["DeviceState", "StreamRecord", "read_stream_record"]

_WORDS: Final = 16
"""Streams that have a number of their own; further ones share the last."""
_DONE: Final = struct.Struct(f"<{_WORDS}Q")
_LAUNCHED: Final = struct.Struct(f"<QQd{PLACE_SIZE}s22x")  # number, word of its stream, when, where
_SLOTS: Final = 1024
"""Ends of phases that may be launched and not yet reached; older ones are forgotten."""
_SIZE: Final = _DONE.size + _SLOTS * _LAUNCHED.size


@dataclass(frozen=True, kw_only=True)
class DeviceState:
    """How far a device is. `done`: the last number given to `Probe.passed` whose work it has finished.

    `place`: the phase that it runs, with its `number`, and when all work of that phase was launched, seconds since the
    epoch; None where it has finished all that was launched.
    """

    done: int
    number: int = 0
    place: Place | None = None
    launched: float = 0.0


class StreamRecord:
    """The rank's end of that memory. `descriptor`: of the file; `address`: of `SIZE` bytes, to be told to the device.

    Nothing here is given back before the process ends: the device may still write.
    """

    SIZE: Final = _SIZE

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("moeframe-device", os.MFD_CLOEXEC)
        os.ftruncate(self.descriptor, _SIZE)
        self._map = mmap.mmap(self.descriptor, _SIZE)
        self._view = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._view)
        self._words: dict[int, int] = {}
        _KEPT.append(self)

    def launched(self, number: int, stream: int, place: Place, at: float) -> int:
        """Note an end of a phase that a stream will reach; returns the offset of the 8 bytes for its number."""
        word = self._words.get(stream)
        if word is None:
            word = self._words[stream] = min(len(self._words), _WORDS - 1)
        _LAUNCHED.pack_into(
            self._map, _DONE.size + number % _SLOTS * _LAUNCHED.size, number, word, at, pack_place(place)
        )
        return 8 * word

    def state(self) -> DeviceState:
        """Return how far the device is."""
        return _state(self._map[:])


_KEPT: Final[list[StreamRecord]] = []


def _state(data: bytes) -> DeviceState:
    done = _DONE.unpack_from(data)
    slots = _LAUNCHED.iter_unpack(data[_DONE.size :])
    behind = [(number, at, place) for number, word, at, place in slots if word < _WORDS and number > done[word]]
    if not behind:
        return DeviceState(done=max(done))
    number, at, place = min(behind)
    return DeviceState(done=max(done), number=number, place=unpack_place(place, 0), launched=at)


def read_stream_record(pid: int, descriptor: int) -> DeviceState | None:
    """Return how far the device of a process of this machine is; None where that cannot be read (it has ended)."""
    try:
        data = Path(f"/proc/{pid}/fd/{descriptor}").read_bytes()
    except OSError:
        return None
    return _state(data) if len(data) == _SIZE else None
