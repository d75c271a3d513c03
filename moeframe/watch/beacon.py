"""The writing end of a beacon: a listener of the trace, and a thread that adds what the rank's spans cannot say."""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import signal
import socket
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

from moeframe import trace
from moeframe.errors import JobFailedError
from moeframe.trace import Place
from moeframe.watch.device import DeviceState
from moeframe.watch.files import write_whole
from moeframe.watch.processes import machine, start_ticks
from moeframe.watch.record import (
    MOMENT_SIZE,
    SIZE,
    Event,
    Life,
    moment_slot,
    pack_header,
    pack_moment,
    pack_place,
    pack_pulse,
    place_fields,
    pulse_slot,
)

__all__ = [
    "PULSE_S",
    "STACK_SIGNAL",
    "Beacon",
    "Probe",
    "beacon_file",
    "flight_file",
    "lit",
    "request_file",
    "stack_file",
]

logger = logging.getLogger(__name__)

STACK_SIGNAL: Final = signal.SIGRTMIN + 7
"""Makes a rank write the Python stacks of its threads; no launcher and no library here uses it."""
PULSE_S: Final = 0.5
_STILL_S: Final = 2.0
"""A rank that does not move for this long, or for three steps if that is longer, looks closely at its collectives."""
_STEPS: Final = 32
"""Steps of which the median is taken."""


class Probe(Protocol):
    """What torch can tell of a rank without the rank's main thread. All but `passed` run on the pulse."""

    def passed(self, number: int, place: Place) -> int:
        """Note that all work of a phase was launched. Returns the number of the stream.

        `number` counts beginnings and ends of phases; ranks of one pipeline stage have the same numbers.
        """

    def device(self) -> DeviceState | None:
        """Return how far the device is; None on a CPU."""

    def record(self) -> int | None:
        """Return the descriptor of a `StreamRecord` that the device writes; None where it does not."""

    def groups(self) -> list[dict[str, Any]]:
        """Return for every process group its name, ranks, and the collectives launched and finished."""

    def collectives(self) -> list[dict[str, Any]]:
        """Return the last collectives of every group, oldest first."""

    def flight(self) -> str:
        """Return torch's flight-recorder trace as JSON, "" where there is none."""


def beacon_file(run_dir: Path, rank: int) -> Path:
    """Return where the beacon of a rank lies."""
    return run_dir / "beacons" / f"rank-{rank}"


def stack_file(run_dir: Path, rank: int) -> Path:
    """Return where a rank writes its stacks when it is asked to."""
    return run_dir / "beacons" / f"rank-{rank}.stack"


def request_file(run_dir: Path) -> Path:
    """Return the file whose presence asks every rank that stands still to say all it knows."""
    return run_dir / "stall" / "request.json"


def flight_file(run_dir: Path, rank: int) -> Path:
    """Return where a rank writes its flight-recorder trace when it is asked to."""
    return run_dir / "stall" / f"rank-{rank}.flight.json"


class Beacon:
    """Writes where this rank is. Told of spans by the trace; `life` changes by `mark`.

    Args:
        file: made anew.
        header: of the rank: rank, world_size and what else a reader should know; process and host are added.
    """

    def __init__(self, file: Path, header: Mapping[str, Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        now, wall = time.monotonic(), time.time()
        own = {
            **header,
            "pid": os.getpid(),
            "start_ticks": start_ticks(os.getpid()),
            "host": socket.gethostname(),
            "machine": machine(),
            "monotonic": now,
            "wall": wall,
        }
        part = file.with_name(f".{file.name}.part")
        with part.open("w+b") as opened:
            # Room on the disk now: a mapped page without any is a SIGBUS later.
            os.posix_fallocate(opened.fileno(), 0, SIZE)
            self._map = mmap.mmap(opened.fileno(), SIZE)
        data = pack_header(own)
        self._map[: len(data)] = data
        self._count = 0
        self._passed = 0
        self._pulses = 0
        self._probe: Probe | None = None
        self._seen: tuple[int, list[dict[str, Any]]] = (-1, [])
        self._collectives: list[dict[str, Any]] = []
        self._life: Life = "starting"
        self._step = -1
        self._step_began = now
        self._durations: deque[float] = deque(maxlen=_STEPS)
        self._median = 0.0
        self._steps = 0
        self._stream = 0
        self.fused = False
        """Whether the dispatcher communicates by kernels of its own."""
        self.place = Place()
        self._place = self._finished = pack_place(self.place)
        self._moved_at = now
        self._write("")
        part.replace(file)

    def probe(self, probe: Probe | None) -> None:
        """Ask `probe` from now on; None: nobody."""
        self._probe = probe

    def enter(self, place: Place) -> None:
        """Note that a phase begins."""
        if self.place.direction == "backward":  # it had no end of its own
            self._finish()
        self.place = place
        self._place = pack_place(place)
        if place.step != self._step:
            self._new_step(place.step)
        self._passed += 1
        self._write("entered")

    def leave(self, place: Place) -> None:
        """Note that a phase has ended."""
        if place is not self.place:
            self.place = place
            self._place = pack_place(place)
        self._finish()
        self._passed += 1
        self._write("left")

    @property
    def count(self) -> int:
        """Events so far."""
        return self._count

    def end(self, *, failed: bool) -> None:
        """Note that the rank has finished, or has failed and in which collectives."""
        self._life = "failed" if failed else "finished"
        self._write("entered" if failed else "left")
        self.pulse(closely=failed)

    def compiling(self, *, yes: bool) -> None:
        """Note that torch.compile begins or ends."""
        self._mark("compiling" if yes else "running")

    def ending(self) -> None:
        """Note that training is over, and what remains is to write and to free."""
        self._mark("ending")

    def _mark(self, life: Life) -> None:
        self._life = life
        self._write("entered")

    def _new_step(self, step: int) -> None:
        now = time.monotonic()
        if self._step >= 0 and step == self._step + 1:
            self._durations.append(now - self._step_began)
            self._median = statistics.median(self._durations)
        self._steps += step >= 0
        self._step, self._step_began = step, now
        if step >= 0 and self._life == "starting":
            self._life = "running"

    def _finish(self) -> None:
        self._finished = self._place
        if self._probe is not None:
            self._stream = self._probe.passed(self._passed + 1, self.place)

    def _write(self, event: Event) -> None:
        self._count = count = self._count + 1
        self._moved_at = at = time.monotonic()
        offset = moment_slot(count)
        self._map[offset : offset + MOMENT_SIZE] = pack_moment(
            count,
            at,
            self._stream,
            self._median,
            self._steps,
            self._passed,
            event,
            self._life,
            self._place,
            self._finished,
        )

    def pulse(self, *, closely: bool = False) -> None:
        """Write what the probe says; `closely`: with the last collectives. Of one thread at a time."""
        values: dict[str, Any] = {"at": time.monotonic(), "count": self._count, "fused": self.fused}
        if self._probe is not None:
            values["groups"] = groups = self._probe.groups()
            values["record"] = self._probe.record()
            done = self._probe.device()
            if done is not None:
                place = None if done.place is None else place_fields(done.place)
                values["device"] = {
                    "done": done.done,
                    "number": done.number,
                    "place": place,
                    "launched": done.launched,
                }
            if closely:
                if self._seen != (self._count, groups):  # reading the recorder takes tens of milliseconds
                    self._seen, self._collectives = (self._count, groups), self._probe.collectives()
                values["collectives"] = self._collectives
        self._pulses += 1
        data = pack_pulse(self._pulses, values)
        offset = pulse_slot(self._pulses)
        self._map[offset : offset + len(data)] = data

    def still_for(self) -> float:
        """Return the seconds since the last event."""
        return time.monotonic() - self._moved_at

    @property
    def still(self) -> bool:
        """Whether the rank has not moved for longer than it usually takes."""
        return self.still_for() > max(_STILL_S, 3 * self._median)

    def flight(self) -> str:
        """Return torch's flight-recorder trace, "" where there is none."""
        return "" if self._probe is None else self._probe.flight()


@contextmanager
def lit(run_dir: Path, rank: int, header: Mapping[str, Any]) -> Iterator[Beacon]:
    """Keep a beacon of this rank inside the block, with its pulse, and let it answer who asks for stacks.

    A crash in native code leaves its stacks in the same file.

    Raises:
        JobFailedError: there is no room for it on the disk.
    """
    try:
        beacon = Beacon(beacon_file(run_dir, rank), header)
        stacks = stack_file(run_dir, rank).open("wb")
    except OSError as error:
        raise JobFailedError(f"the beacon of rank {rank} in {run_dir / 'beacons'} cannot be made: {error}") from error
    over = threading.Event()

    def pulse() -> None:
        answered = -1
        while not over.wait(PULSE_S):
            try:
                beacon.pulse(closely=beacon.still)
            except Exception:
                logger.exception("the beacon's probe has failed and is not asked again")
                beacon.probe(None)
            if beacon.still and answered != beacon.count and request_file(run_dir).exists():
                answered = beacon.count
                _write_flight(beacon, flight_file(run_dir, rank))

    if threading.current_thread() is threading.main_thread():
        signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # what unregistering leaves: who asks too late must not kill
    thread = threading.Thread(target=pulse, name="moeframe-beacon", daemon=True)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    before = faulthandler.is_enabled()
    faulthandler.enable(file=stacks, all_threads=True)  # where a crash in native code was
    thread.start()
    failed = True
    try:
        with trace.listen(beacon, backward="begin"):
            yield beacon
        failed = False
    finally:
        over.set()
        thread.join()
        beacon.end(failed=failed)
        faulthandler.unregister(STACK_SIGNAL)
        faulthandler.enable() if before else faulthandler.disable()
        stacks.close()


def _write_flight(beacon: Beacon, file: Path) -> None:
    text = beacon.flight()
    if text:
        write_whole(file, text)
