"""A rank as the judge sees it: its beacon, its process, its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from moeframe.protocols.stall import RankState, StalledRank
from moeframe.trace import Place
from moeframe.watch.crash import Crash
from moeframe.watch.device import DeviceState, read_stream_record
from moeframe.watch.processes import machine, start_ticks
from moeframe.watch.record import BeaconError, Moment, expand, read_header, read_moment, read_pulse

__all__ = ["SILENT_S", "UNSEEN", "Group", "Launched", "Raised", "RankView", "interrupted", "read_view", "read_views"]


UNSEEN: Final = "died without a word"
SILENT_S: Final = 5.0
"""Without a pulse for so long a rank runs no Python: one comes twice a second; a busy machine delays it."""


@dataclass(frozen=True, kw_only=True)
class Raised:
    """The report of a rank that failed. `secondhand`: it only says that another rank has gone. `time`: epoch, s."""

    rank: int
    error: str
    place: Place
    time: float
    secondhand: bool


def interrupted(reports: Sequence[Raised]) -> bool:
    """Whether a Ctrl-C has ended the ranks that failed, and nothing else."""
    own = [report for report in reports if not report.secondhand]
    return bool(own) and all(report.error.startswith("KeyboardInterrupt") for report in own)


@dataclass(frozen=True, kw_only=True)
class Group:
    """A process group, and how many collectives a rank has launched in it. `what` is its description."""

    name: str
    what: str
    ranks: tuple[int, ...]
    launched: int


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A collective or, with `p2p`, a message of one rank. `sequence` counts in the group from 1; 0: torch knows it not.

    `sizes` and `results` are shapes of inputs and outputs. `created`: when the rank launched it, seconds since the
    epoch; 0 where that is not known.
    """

    group: str
    what: str
    op: str
    sequence: int
    p2p: bool
    sizes: tuple[tuple[int, ...], ...]
    results: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    over: bool
    created: float = 0.0

    def __str__(self) -> str:
        """Return it in words."""
        shapes = ", ".join(f"{dtype} {list(size)}" for dtype, size in zip(self.dtypes, self.sizes, strict=False))
        if not self.sequence:
            return self.op
        number = "message" if self.p2p else "collective"
        return f"{self.op} {shapes}".rstrip() + f", {number} {self.sequence} of {self.what or 'group ' + self.group}"


@dataclass(frozen=True, kw_only=True)
class RankView:
    """Everything that is known of a rank. Times are seconds since the epoch on the rank's own host.

    `still_s`: how long it has not moved. `collectives`: the last ones of every group, oldest first; None where the rank
    has not looked since it moved (it looks when it stands still). `device`: the phase that its GPU has not finished;
    None when it has finished all that was launched, and where nobody has looked since the rank moved.
    `device_number`: of the end of that phase; `device_launched`: when all its work was launched. `deaf`: its pulse has
    stopped although its process runs: no Python thread of it gets to run. `raised`: its own report.
    """

    rank: int
    world_size: int
    host: str
    pid: int
    start_ticks: int
    state: RankState
    moment: Moment
    since: float
    still_s: float
    machine: str = ""
    """As `moeframe.watch.processes.machine`."""
    groups: tuple[Group, ...] = ()
    collectives: tuple[Launched, ...] | None = None
    device: Place | None = None
    device_number: int = 0
    device_launched: float = 0.0
    alive_at: float = 0.0
    """Its last sign of life: an event or a pulse."""
    deaf: bool = False
    raised: Raised | None = None
    ended_by: str = ""
    """How its process ended, in words, where that is known."""
    crash: Crash | None = None
    """Where it was when it crashed in native code."""
    gpu: bool = False
    """Whether it computes on a GPU."""
    fused: bool = False
    """Whether its dispatcher communicates by kernels of its own."""

    @property
    def how_it_ended(self) -> str:
        """How its process ended, in words, as far as anything tells."""
        crashed = "" if self.crash is None else f"crashed ({self.crash.signal})"
        unsaid = "failed, and no report of it can be read" if self.state == "failed" else UNSEEN
        return self.ended_by or crashed or unsaid

    @property
    def place(self) -> Place:
        """Where it is: the phase that its GPU runs, if that is behind, else the place entered last."""
        return self.device or self.moment.place

    @property
    def inside(self) -> bool:
        """Whether it is in the middle of `place`, not behind it."""
        return self.device is not None or self.moment.event == "entered"

    @property
    def progress(self) -> int:
        """How many beginnings and ends of phases it has passed: its GPU, if that is behind."""
        return self.moment.passed if self.device is None else self.device_number

    @property
    def pending(self) -> tuple[Launched, ...]:
        """Collectives and messages that it has launched and that are not over."""
        return tuple(entry for entry in self.collectives or () if not entry.over)

    def queued(self, entry: Launched) -> bool:
        """Whether a collective waits on the GPU for a phase before it: it was launched after all work of that one."""
        return self.device is not None and not entry.over and entry.created > self.device_launched

    @property
    def reached(self) -> tuple[Launched, ...]:
        """What is pending and not queued: what the rank waits in."""
        return tuple(entry for entry in self.pending if not self.queued(entry))

    @property
    def in_kernel(self) -> bool:
        """Whether its GPU is in a phase that does not end, and in no collective that torch knows.

        Of a deaf rank nobody knows the collectives; its GPU is in that phase all the same.
        """
        return self.device is not None and (self.collectives is not None or self.deaf) and not self.reached

    @property
    def exchanging(self) -> bool:
        """Whether it is in the middle of a phase in which the dispatcher communicates."""
        return self.inside and self.place.phase in ("dispatch", "combine")

    @property
    def in_dispatcher(self) -> bool:
        """Whether it is in the dispatcher, and in no collective that torch knows."""
        return self.exchanging and not self.reached

    def launched(self, group: str) -> int | None:
        """Return how many collectives it has launched in a group; None if it does not know the group."""
        return next((own.launched for own in self.groups if own.name == group), None)

    def row(self) -> StalledRank:
        """Return its line of a report."""
        return StalledRank(
            rank=self.rank,
            host=self.host,
            pid=self.pid,
            state=self.state,
            place=self.place,
            inside=self.inside,
            finished=self.moment.finished,
            device=self.device,
            still_s=round(self.still_s, 1),
            since=datetime.fromtimestamp(self.since, tz=UTC).isoformat(timespec="seconds"),
            waits_in="; ".join(map(str, self.reached)),
        )


def read_view(file: Path, *, now: float) -> RankView:
    """Read a beacon.

    Args:
        file: the beacon.
        now: seconds since the epoch, of the host that wrote it.

    Raises:
        BeaconError: it cannot be read; says why and names the file.
    """
    try:
        return _view(file, file.read_bytes(), now)
    except OSError as error:
        raise BeaconError(f"{file}: {error.strerror}") from error
    except BeaconError as error:
        raise BeaconError(f"{file}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # whole, but with other fields
        raise BeaconError(f"{file}: it is of another version of moeframe ({type(error).__name__}: {error})") from error


def _view(file: Path, data: bytes, now: float) -> RankView:
    header, moment = read_header(data), read_moment(data)
    if moment is None:
        raise BeaconError("it holds no whole record")
    if file.name != f"rank-{header['rank']}":
        raise BeaconError(f"it is the beacon of rank {header['rank']}, not of the rank in its name")
    pulse = read_pulse(data) or {}
    since = _wall(header, moment.at)
    states: dict[str, RankState] = {"finished": "finished", "failed": "failed"}
    current = bool(pulse) and pulse["at"] >= moment.at
    collectives = pulse.get("collectives") if current else None
    device = _device_state(header, pulse, current=current)
    return RankView(
        rank=header["rank"],
        world_size=header["world_size"],
        host=header["host"],
        machine=header["machine"],
        pid=header["pid"],
        start_ticks=header["start_ticks"],
        state=states.get(moment.life, "unknown"),
        moment=moment,
        since=since,
        still_s=max(0.0, now - since),
        groups=tuple(_group(values) for values in pulse.get("groups", ())),
        collectives=None if collectives is None else tuple(_launched(values) for values in collectives),
        device=device.place,
        device_number=device.number,
        device_launched=device.launched,
        alive_at=max(since, _wall(header, pulse["at"])) if pulse else since,
        deaf=bool(pulse) and now - _wall(header, pulse["at"]) > SILENT_S,
        gpu="device" in pulse,
        fused=bool(pulse.get("fused")),
    )


def read_views(run_dir: Path, *, now: float) -> tuple[list[RankView], list[str]]:
    """Return the ranks of a run in order, and a line for each beacon that cannot be read."""
    views, problems = [], []
    for file in sorted((run_dir / "beacons").glob("rank-*")):
        if file.suffix:
            continue
        try:
            views.append(read_view(file, now=now))
        except BeaconError as error:
            problems.append(str(error))
    return sorted(views, key=lambda view: view.rank), problems


def _wall(header: Mapping[str, Any], monotonic: float) -> float:
    wall: float = header["wall"] + monotonic - header["monotonic"]
    return wall


def _device_state(header: Mapping[str, Any], pulse: Mapping[str, Any], *, current: bool) -> DeviceState:
    """Return what the device writes itself, where that can be read; else what the rank's last pulse says of it."""
    descriptor, pid = pulse.get("record"), header["pid"]
    if descriptor is not None and header["machine"] == machine() and start_ticks(pid) == header["start_ticks"]:
        found = read_stream_record(pid, descriptor)
        if found is not None:
            return found
    values = pulse.get("device") if current else None
    if values is None or values["place"] is None:
        return DeviceState(done=0)
    step, micro_batch, stage, layer, phase, direction = values["place"]
    place = Place(step=step, micro_batch=micro_batch, stage=stage, layer=layer, phase=phase, direction=direction)
    return DeviceState(done=values["done"], number=values["number"], place=place, launched=values["launched"])


def _group(values: Mapping[str, Any]) -> Group:
    return Group(name=values["name"], what=values["what"], ranks=expand(values["ranks"]), launched=values["launched"])


def _launched(values: Mapping[str, Any]) -> Launched:
    p2p = bool(values["is_p2p"])
    return Launched(
        group=values["group"],
        what=values["what"],
        op=values["op"],
        sequence=values["p2p_seq_id" if p2p else "collective_seq_id"] or 0,
        p2p=p2p,
        sizes=tuple(tuple(size) for size in values["input_sizes"] or ()),
        results=tuple(tuple(size) for size in values["output_sizes"] or ()),
        dtypes=tuple(values["input_dtypes"] or ()),
        over=values["over"],
        created=values["created"],
    )
