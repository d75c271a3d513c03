"""Beacons: what is written is read, torn records are left out, other files are refused."""

from __future__ import annotations

import contextlib
import zlib
from pathlib import Path

import pytest

from moeframe.trace import Place
from moeframe.watch.beacon import Beacon, beacon_file, lit
from moeframe.watch.record import (
    MOMENT_SIZE,
    SIZE,
    BeaconError,
    compact,
    expand,
    moment_slot,
    pack_header,
    pack_pulse,
    pulse_slot,
    read_moment,
    read_pulse,
)
from moeframe.watch.view import read_view, read_views

PLACE = Place(step=7, micro_batch=1, stage=2, layer=3, phase="dispatch")


@pytest.fixture
def beacon(tmp_path: Path) -> Beacon:
    return Beacon(tmp_path / "beacons" / "rank-0", {"rank": 0, "world_size": 2})


def test_where_a_rank_is_and_what_it_has_finished_can_be_read_from_outside(beacon: Beacon, tmp_path: Path) -> None:
    before = Place(step=7, layer=3, phase="attend")
    beacon.enter(before)
    beacon.leave(before)
    beacon.enter(PLACE)
    view = read_view(tmp_path / "beacons" / "rank-0", now=0.0)
    assert (view.place, view.moment.finished, view.inside) == (PLACE, before, True)
    beacon.leave(PLACE)
    view = read_view(tmp_path / "beacons" / "rank-0", now=0.0)
    assert (view.place, view.moment.finished, view.inside) == (PLACE, PLACE, False)


def test_a_backward_phase_ends_where_the_next_place_begins(beacon: Beacon, tmp_path: Path) -> None:
    last = Place(step=1, layer=2, phase="experts", direction="backward")
    beacon.enter(last)
    beacon.enter(Place(step=1, layer=2, phase="dispatch", direction="backward"))
    assert read_view(tmp_path / "beacons" / "rank-0", now=0.0).moment.finished == last


@pytest.mark.parametrize("torn", range(0, MOMENT_SIZE, 5))
def test_a_record_that_is_half_written_gives_way_to_the_one_before(beacon: Beacon, torn: int, tmp_path: Path) -> None:
    beacon.enter(Place(step=1, phase="data"))
    before = (tmp_path / "beacons" / "rank-0").read_bytes()
    beacon.leave(Place(step=1, phase="data"))
    data = bytearray((tmp_path / "beacons" / "rank-0").read_bytes())
    moment = read_moment(bytes(data))
    assert moment is not None
    slot = moment_slot(moment.count)
    data[slot + torn : slot + MOMENT_SIZE] = before[slot + torn : slot + MOMENT_SIZE]
    found = read_moment(bytes(data))
    assert found is not None
    # Where the two records share their last bytes, nothing was torn.
    assert found.count in (moment.count - 1, moment.count)
    assert found.count == moment.count or found.event == "entered"


def test_a_pulse_that_is_half_written_gives_way_to_the_one_before(beacon: Beacon, tmp_path: Path) -> None:
    beacon.pulse()
    beacon.pulse()
    data = bytearray((tmp_path / "beacons" / "rank-0").read_bytes())
    newest = read_pulse(bytes(data))
    data[pulse_slot(2) + 20] ^= 0xFF
    assert newest is not None
    older = read_pulse(bytes(data))
    assert older is not None
    assert older["at"] < newest["at"]


def test_a_pulse_that_is_too_long_loses_its_oldest_collectives() -> None:
    entries = [{"op": "x" * 1000, "number": number} for number in range(100)]
    data = bytearray(pulse_slot(1) + len(pack_pulse(1, {"at": 1.0, "collectives": entries})) + 40_000)
    packed = pack_pulse(1, {"at": 1.0, "collectives": entries})
    data[pulse_slot(1) : pulse_slot(1) + len(packed)] = packed
    kept = read_pulse(bytes(data))
    assert kept is not None
    assert kept["collectives"][-1]["number"] == 99
    assert 10 < len(kept["collectives"]) < 100


def test_the_median_step_and_the_number_of_steps_are_kept(beacon: Beacon, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        beacon.enter(Place(step=step, phase="data"))
    moment = read_view(tmp_path / "beacons" / "rank-0", now=0.0).moment
    assert (moment.steps, moment.life) == (3, "running")
    assert moment.median_step_s > 0


@pytest.mark.parametrize(("failed", "life"), [(False, "finished"), (True, "failed")])
def test_a_beacon_says_how_its_rank_ended(tmp_path: Path, failed: bool, life: str) -> None:
    with contextlib.suppress(ValueError), lit(tmp_path, 0, {"rank": 0, "world_size": 1}):
        if failed:
            raise ValueError
    assert read_view(beacon_file(tmp_path, 0), now=0.0).state == life


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "still being made"),
        (b"something else" * 9999, "no beacon"),
        (pack_header({})[:16] + b"\x09\0\0\0" + pack_header({})[20:], "format 9"),
        (pack_header({})[:25] + b"x" + pack_header({})[26:], "damaged"),
        (pack_header({"rank": 0}).ljust(100_000, b"\0"), "no whole record"),
        (pack_header({"rank": 0}).ljust(1030, b"\0"), f"has 1030 of {SIZE} bytes"),
        (pack_header({"rank": 0}).ljust(SIZE - 1, b"\0"), f"has {SIZE - 1} of {SIZE} bytes"),
    ],
    ids=["empty", "other", "other version", "damaged", "header only", "cut in its records", "cut at its end"],
)
def test_what_is_no_beacon_is_named_with_the_reason(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "beacons").mkdir()
    (tmp_path / "beacons" / "rank-0").write_bytes(content)
    views, problems = read_views(tmp_path, now=0.0)
    assert not views
    assert words in problems[0]
    assert "rank-0" in problems[0]
    with pytest.raises(BeaconError):
        read_view(tmp_path / "beacons" / "rank-0", now=0.0)


@pytest.mark.parametrize("from_end", [2, 20, 37, 38], ids=["last finished", "place", "life", "event"])
def test_a_record_with_words_of_a_newer_version_is_named(beacon: Beacon, tmp_path: Path, from_end: int) -> None:
    beacon.enter(PLACE)
    file = tmp_path / "beacons" / "rank-0"
    data = bytearray(file.read_bytes())
    moment = read_moment(bytes(data))
    assert moment is not None
    slot, end = moment_slot(moment.count), MOMENT_SIZE - 4
    data[slot + end - from_end] = 200
    data[slot + end : slot + MOMENT_SIZE] = zlib.crc32(data[slot : slot + end]).to_bytes(4, "little")
    file.write_bytes(data)
    with pytest.raises(BeaconError, match=r"rank-0: .* newer version"):
        read_view(file, now=0.0)


def test_a_header_with_other_fields_is_named(beacon: Beacon, tmp_path: Path) -> None:
    beacon.enter(PLACE)
    file = tmp_path / "beacons" / "rank-0"
    header = pack_header({"rank": 0, "world": 2})
    file.write_bytes(header + file.read_bytes()[len(header) :])
    with pytest.raises(BeaconError, match="rank-0: it is of another version"):
        read_view(file, now=0.0)


def test_a_copy_of_the_beacon_of_another_rank_is_named(beacon: Beacon, tmp_path: Path) -> None:
    beacon.enter(PLACE)
    (tmp_path / "beacons" / "rank-1").write_bytes((tmp_path / "beacons" / "rank-0").read_bytes())
    views, problems = read_views(tmp_path, now=0.0)
    assert [view.rank for view in views] == [0]
    assert "rank-1: it is the beacon of rank 0" in problems[0]


@pytest.mark.parametrize("ranks", [[0], [0, 1], [3, 11, 19], [0, 1, 3], [5]])
def test_ranks_of_a_mesh_take_little_room_and_come_back(ranks: list[int]) -> None:
    assert expand(compact(ranks)) == tuple(ranks)
