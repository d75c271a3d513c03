from __future__ import annotations

import io

from moeframe_datasets import meter as meter_module
from moeframe_datasets.meter import Meter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self, monkeypatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(meter_module.time, "monotonic", lambda: self.now)


def test_a_line_says_share_size_speed_and_time_left() -> None:
    meter = Meter("tokenizing", 400_000_000, stream=io.StringIO())
    assert meter.line(100_000_000, 50.0) == "tokenizing: 25% of 400.0 MB, 2.0 MB/s, ETA 2:30"
    assert meter.line(100_000, 50.0).endswith("ETA 55:32:30")
    assert meter.line(0, 50.0).endswith("0% of 400.0 MB, 0.0 MB/s, ETA ?")


def test_what_is_done_in_a_second_shows_nothing(monkeypatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    meter = Meter("tokenizing", 10, stream=stream)
    clock.now += 0.9
    meter.advance(10)
    meter.close()
    assert stream.getvalue() == ""


def test_a_log_gets_a_line_every_ten_seconds(monkeypatch) -> None:
    clock, stream = Clock(monkeypatch), io.StringIO()
    meter = Meter("tokenizing", 100, stream=stream)
    for done in range(1, 41):
        clock.now += 1
        meter.advance(done)
    assert [line.split(" of ")[0] for line in stream.getvalue().splitlines()] == [
        "tokenizing: 1%", "tokenizing: 11%", "tokenizing: 21%", "tokenizing: 31%"
    ]  # fmt: skip


def test_a_terminal_has_one_line_that_changes(monkeypatch) -> None:
    clock, stream = Clock(monkeypatch), Terminal()
    meter = Meter("tokenizing", 100, stream=stream)
    for done in (50, 100):
        clock.now += 2
        meter.advance(done)
    meter.close()
    assert stream.getvalue().count("\r") == 2
    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().endswith("\n")


def test_processes_that_only_wait_show_nothing(monkeypatch) -> None:
    clock, stream = Clock(monkeypatch), Terminal()
    meter = Meter("tokenizing", 100, stream=stream, shown=False)
    clock.now += 60
    meter.advance(50)
    meter.say("waiting")
    meter.close()
    assert stream.getvalue() == ""


def test_a_line_of_its_own_ends_the_live_one(monkeypatch) -> None:
    clock, stream = Clock(monkeypatch), Terminal()
    meter = Meter("tokenizing", 100, stream=stream)
    clock.now += 2
    meter.advance(50)
    meter.say("waiting for process 7")
    assert stream.getvalue().endswith("\nwaiting for process 7\n")
