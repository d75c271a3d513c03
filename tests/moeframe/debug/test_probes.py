"""How far a device is: events are polled, and `launched` differs from `finished`."""

from __future__ import annotations

import time

import torch

from moeframe.debug.probes import DeviceProgress, TorchProbe
from moeframe.trace import Place
from moeframe.watch.device import DeviceState


class Event:
    """Plays an event of a device."""

    made = 0

    def __init__(self) -> None:
        Event.made += 1
        self.reached = False

    def record(self, stream) -> None:
        assert stream == "stream"
        self.reached = False

    def query(self) -> bool:
        return self.reached


def test_what_was_launched_is_not_yet_finished() -> None:
    events: list[Event] = []

    def new() -> Event:
        events.append(Event())
        return events[-1]

    progress = DeviceProgress(new, lambda: 7, lambda: "stream")
    places = [Place(step=1, layer=1, phase=phase) for phase in ("attend", "dispatch", "experts")]
    before = time.time()
    for count, place in enumerate(places, 1):
        assert progress.passed(count, place) == 7
    found = progress.running()
    assert (found.done, found.number, found.place) == (0, 1, places[0])
    assert before <= found.launched <= time.time()
    events[0].reached = True
    found = progress.running()
    assert (found.done, found.number, found.place) == (1, 2, places[1])
    events[1].reached = events[2].reached = True
    assert progress.running() == DeviceState(done=3)


def test_events_are_used_again_once_the_device_has_passed_them() -> None:
    made: list[Event] = []

    def new() -> Event:
        made.append(Event())
        made[-1].record = lambda stream: None  # the device is always done at once
        made[-1].reached = True
        return made[-1]

    progress = DeviceProgress(new, lambda: 0, lambda: "stream")
    for count in range(100):
        progress.passed(count, Place())
        if count % 10 == 9:
            assert progress.running() == DeviceState(done=count)
    assert len(made) == 10


def test_of_two_streams_the_oldest_work_counts() -> None:
    streams = iter((1, 2))
    progress = DeviceProgress(Event, lambda: next(streams), lambda: "stream")
    first, second = Place(step=1, layer=1, phase="dispatch"), Place(step=1, layer=1, phase="experts")
    progress.passed(1, first)
    progress.passed(2, second)
    found = progress.running()
    assert (found.done, found.number, found.place) == (0, 1, first)


def test_a_cpu_has_nothing_to_confirm_and_one_process_no_groups() -> None:
    probe = TorchProbe(torch.device("cpu"))
    assert probe.passed(1, Place()) == 0
    assert probe.device() is None
    assert probe.groups() == []
