from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest
from moeframe_datasets import locking
from moeframe_datasets.locking import locked


def test_a_lock_is_held_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path, tell=pytest.fail), path.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert other.read().startswith("process ")
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_for_long_is_told_for_whom(tmp_path: Path, monkeypatch) -> None:
    path, told, waits = tmp_path / "lock", [], []
    with path.open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        holder.write("process 7 on node3")
        holder.flush()

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if told:
                fcntl.flock(holder, fcntl.LOCK_UN)

        monkeypatch.setattr(locking, "_TELL_AFTER_S", 0.0)
        monkeypatch.setattr(locking.time, "sleep", wait)
        with locked(path, tell=told.append):
            assert waits
    assert told == ["waiting for process 7 on node3, which prepares the same data"]


def test_a_free_lock_is_left_to_others_until_there_is_nothing_to_wait_for(tmp_path: Path, monkeypatch) -> None:
    path, waits = tmp_path / "lock", []
    monkeypatch.setattr(locking.time, "sleep", waits.append)
    with locked(path, tell=pytest.fail, yield_s=60, needless=lambda: len(waits) == 3):
        assert len(waits) == 3


def test_a_file_system_without_locks_stops_nobody(tmp_path: Path, monkeypatch) -> None:
    def no_locks(file: object, how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locking.fcntl, "flock", no_locks)
    with locked(tmp_path / "lock", tell=pytest.fail):
        pass


def test_another_failure_of_a_lock_is_raised(tmp_path: Path, monkeypatch) -> None:
    def broken(file: object, how: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(locking.fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"), locked(tmp_path / "lock", tell=pytest.fail):
        pass
