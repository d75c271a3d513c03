"""Joining a job: who has not started is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from moeframe.errors import JobFailedError
from moeframe.launch.environment import RENDEZVOUS, World
from moeframe.launch.group import joined

CPU = torch.device("cpu")


def world(rank: int, size: int) -> World:
    return World(launcher="local", rank=rank, world_size=size, local_rank=rank, local_world_size=size)


def test_ranks_that_do_not_start_are_named_by_those_that_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, f"file://{tmp_path / 'meeting'}")
    with pytest.raises(JobFailedError, match=r"rank_absent: of 3 ranks, 0, 2 have not started within 0.2 s"):
        with joined(world(1, 3), CPU, start_s=0.2):
            pass
    assert not dist.is_initialized()


def test_who_came_in_an_attempt_before_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RENDEZVOUS, f"file://{tmp_path / 'meeting'}")
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        other = 1 - int(attempt)
        with pytest.raises(JobFailedError, match=f"2 ranks, {other} have not started"):
            with joined(world(1 - other, 2), CPU, start_s=0.2):
                pass
