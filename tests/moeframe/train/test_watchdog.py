"""The watchdog beside a rank of torchrun or Slurm is started again when it is killed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeframe.launch.environment import World
from moeframe.train import watchdog
from moeframe.train.run_directory import RunDirectory

WORLD = World(launcher="torchrun", rank=3, world_size=4, local_rank=1, local_world_size=2)


@pytest.mark.parametrize(("codes", "starts"), [([-9, 1, 0], 3), ([1] * 99, 1 + watchdog._STARTS)])
def test_a_watchdog_that_is_killed_is_started_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codes: list[int], starts: int
) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command)
        code = codes[len(commands) - 1]
        return SimpleNamespace(wait=lambda: code)

    monkeypatch.setattr(watchdog.subprocess, "Popen", popen)
    (tmp_path / "log").mkdir()
    watchdog.start_beside(RunDirectory(tmp_path), WORLD, ["mine"], [(7, 1), (8, 1), (9, 5), (10, 6)])
    for thread in threading.enumerate():
        if thread.name == "moeframe-watchdog":
            thread.join(10)
    assert len(commands) == starts
    assert all(command == commands[0] for command in commands)
    path, world_size, first, launcher, local, plugin = commands[0][3:]
    assert (path, world_size, first, local, plugin) == (str(tmp_path), "4", "2", "9:5,10:6", "mine")
    assert launcher.count(":") == 1
