"""The CUDA driver is told to write numbers behind the work of a stream; a driver that cannot is no fault."""

from __future__ import annotations

import ctypes
import logging

from moeframe.debug import streams
from moeframe.debug.streams import StreamProgress
from moeframe.trace import Place
from moeframe.watch.device import DeviceState, read_stream_record


class Driver:
    """Plays libcuda: what a stream writes waits until the device runs it."""

    def __init__(self, refuses: str = "") -> None:
        self.queue: list[tuple[int, int]] = []
        self.address = 0
        for name in ("cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuStreamWriteValue64_v2"):
            setattr(self, name, self._call(name, refused=name == refuses))

    def _call(self, name, *, refused):
        def call(*arguments):
            if not refused:
                getattr(self, name.removeprefix("cu").split("_")[0].lower())(*arguments)
            return 801 if refused else 0

        return call

    def memhostregister(self, address, size, flags) -> None:
        assert (size.value > 64, flags.value) == (True, 2)
        self.address = address.value

    def memhostgetdevicepointer(self, pointer, address, flags) -> None:
        assert address.value == self.address
        pointer._obj.value = self.address + 2**50

    def streamwritevalue64(self, stream, pointer, value, flags) -> None:
        assert flags == 0
        self.queue.append((pointer - 2**50, value))

    def run(self, number: int) -> None:
        for address, value in self.queue[:number]:
            ctypes.c_uint64.from_address(address).value = value
        del self.queue[:number]


def test_the_device_says_itself_how_far_it_is(monkeypatch) -> None:
    import os

    driver = Driver()
    progress = StreamProgress(lambda: 5, driver)
    places = [Place(step=1, layer=layer, phase="experts") for layer in (0, 1)]
    assert [progress.passed(number, place) for number, place in zip((1, 2), places, strict=True)] == [5, 5]
    driver.run(2)  # the first is the trial
    assert (progress.running().number, progress.running().place) == (2, places[1])
    assert read_stream_record(os.getpid(), progress.descriptor) == progress.running()
    driver.run(1)
    assert progress.running() == DeviceState(done=2)


def test_where_the_driver_refuses_events_are_polled_and_the_log_says_so(monkeypatch, caplog) -> None:
    caplog.set_level(logging.INFO)
    for refused in ("cuMemHostRegister_v2", "cuStreamWriteValue64_v2"):
        monkeypatch.setattr(streams.ctypes, "CDLL", lambda name, refused=refused: Driver(refused))
        assert StreamProgress.of(lambda: 5) is None
        assert f"{refused} returned 801" in caplog.text
