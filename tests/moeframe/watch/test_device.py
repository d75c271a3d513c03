"""What a device writes itself is read by whoever shares the machine, whatever the rank's threads do."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time

from moeframe.trace import Place
from moeframe.watch.beacon import Beacon
from moeframe.watch.device import DeviceState, StreamRecord, read_stream_record
from moeframe.watch.view import read_view

PLACES = [Place(step=1, layer=number, phase="experts") for number in range(5)]


def reach(record: StreamRecord, offset: int, number: int) -> None:
    """Play the device."""
    ctypes.c_uint64.from_address(record.address + offset).value = number


def test_the_first_end_that_is_launched_and_not_reached_says_where_the_device_is() -> None:
    record = StreamRecord()
    assert record.state() == DeviceState(done=0)
    word = [record.launched(number, 77, PLACES[number], 10.0 + number) for number in (1, 2, 3)]
    assert len(set(word)) == 1
    assert record.state() == DeviceState(done=0, number=1, place=PLACES[1], launched=11.0)
    reach(record, word[0], 2)
    assert record.state() == DeviceState(done=2, number=3, place=PLACES[3], launched=13.0)
    reach(record, word[0], 3)
    assert record.state() == DeviceState(done=3)


def test_of_two_streams_the_oldest_work_counts() -> None:
    record = StreamRecord()
    first, second = record.launched(1, 7, PLACES[1], 0.0), record.launched(2, 8, PLACES[2], 0.0)
    assert first != second
    reach(record, second, 2)
    assert record.state() == DeviceState(done=2, number=1, place=PLACES[1], launched=0.0)


def test_what_is_long_reached_makes_room() -> None:
    record = StreamRecord()
    for number in range(1, 5000):
        reach(record, record.launched(number, 7, PLACES[0], 0.0), number)
    record.launched(5000, 7, PLACES[4], 0.0)
    assert record.state() == DeviceState(done=4999, number=5000, place=PLACES[4], launched=0.0)


class Still:
    """A probe whose device stands still in the first of two phases."""

    def __init__(self) -> None:
        self.memory = StreamRecord()

    def passed(self, number: int, place: Place) -> int:
        self.memory.launched(number, 7, place, time.time())
        return 7

    def device(self) -> DeviceState:
        return self.memory.state()

    def record(self) -> int:
        return self.memory.descriptor

    def groups(self) -> list[dict[str, object]]:
        return []

    def collectives(self) -> list[dict[str, object]]:
        return []


def test_a_view_has_the_device_of_a_rank_whose_pulse_has_stopped(tmp_path) -> None:
    beacon = Beacon(tmp_path / "rank-0", {"rank": 0, "world_size": 1})
    beacon.probe(Still())
    beacon.pulse()  # the last one
    for place in PLACES[1:3]:
        beacon.enter(place)
        beacon.leave(place)
    view = read_view(tmp_path / "rank-0", now=time.time() + 10)
    assert view.deaf
    assert (view.device, view.device_number) == (PLACES[1], 2)
    assert view.place == PLACES[1]
    assert view.in_kernel


def test_it_is_read_from_another_process_and_ends_with_its_own() -> None:
    program = (
        "import json, os, sys; from moeframe.trace import Place; from moeframe.watch.device import StreamRecord\n"
        "record = StreamRecord(); record.launched(9, 1, Place(step=3, layer=2, phase='experts'), 5.0)\n"
        "print(json.dumps([os.getpid(), record.descriptor]), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        pid, descriptor = json.loads(process.stdout.readline())
        found = read_stream_record(pid, descriptor)
        process.stdin.close()
    place = Place(step=3, layer=2, phase="experts")
    assert found == DeviceState(done=0, number=9, place=place, launched=5.0)
    assert read_stream_record(pid, descriptor) is None
    assert read_stream_record(os.getpid(), 10**6) is None
