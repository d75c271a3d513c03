"""A device that writes itself how far it is: CUDA's writes in stream order, through the driver's C interface."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from moeframe.trace import Place
from moeframe.watch.device import DeviceState, StreamRecord

__all__ = ["StreamProgress"]

logger = logging.getLogger(__name__)

_DRIVER: Final = "libcuda.so.1"
_MAPPED: Final = 2
"""CU_MEMHOSTREGISTER_DEVICEMAP."""
_WITH_BARRIER: Final = 0
"""CU_STREAM_WRITE_VALUE_DEFAULT. Takes the device 2 us; without a barrier an H200's driver refuses the write."""


class StreamProgress:
    """As `DeviceProgress`, without events that somebody must poll.

    Args:
        stream_number: returns the raw stream that work is launched on now.
        driver: the CUDA driver's library; a context is current.

    Raises:
        OSError: the driver refuses; says which call and with which number.
    """

    def __init__(self, stream_number: Callable[[], int], driver: Any) -> None:
        self._stream_number = stream_number
        self._record = StreamRecord()
        address = ctypes.c_void_p(self._record.address)
        pointer = ctypes.c_uint64()
        _call(driver, "cuMemHostRegister_v2", address, ctypes.c_size_t(StreamRecord.SIZE), ctypes.c_uint(_MAPPED))
        _call(driver, "cuMemHostGetDevicePointer_v2", ctypes.byref(pointer), address, ctypes.c_uint(0))
        self._pointer = pointer.value
        self._write = driver.cuStreamWriteValue64_v2
        self._write.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint)
        _call(driver, "cuStreamWriteValue64_v2", stream_number(), self._pointer, 0, _WITH_BARRIER)

    @classmethod
    def of(cls, stream_number: Callable[[], int]) -> StreamProgress | None:
        """Return one; None, with a line in the log, where this machine's driver does not do it."""
        try:
            return cls(stream_number, ctypes.CDLL(_DRIVER))
        except (OSError, AttributeError) as error:
            logger.info("the GPU cannot write how far it is (%s): events are polled", error)
            return None

    @property
    def descriptor(self) -> int:
        """Of the file that the device writes, in this process."""
        return self._record.descriptor

    def passed(self, number: int, place: Place) -> int:
        """Have the current stream write `number` behind all work launched so far; returns the stream."""
        stream = self._stream_number()
        offset = self._record.launched(number, stream, place, time.time())
        self._write(stream, self._pointer + offset, number, _WITH_BARRIER)
        return stream

    def running(self) -> DeviceState:
        """Return how far the device is. Of several streams, that of the oldest work counts."""
        return self._record.state()


def _call(driver: Any, name: str, *arguments: Any) -> None:
    code = getattr(driver, name)(*arguments)
    if code:
        raise OSError(f"{name} returned {code}")
