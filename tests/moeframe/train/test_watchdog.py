"""What the watchdog of a job does besides watching: start again, and tell plugins."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeframe.config.load import load_recipe
from moeframe.launch.environment import World
from moeframe.train import watchdog
from moeframe.train.run_directory import RunDirectory

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
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


def test_a_plugin_that_does_not_return_from_its_hook_does_not_keep_the_job_from_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    over = threading.Event()
    called: list[str] = []
    host = SimpleNamespace(call_each=lambda hook, **_: (called.append(hook), over.wait(20)))
    monkeypatch.setattr(watchdog, "build_plugin_manager", lambda *_, **__: host)
    monkeypatch.setattr(watchdog, "_HOOK_S", 0.1)
    recipe = load_recipe(TINY).recipe
    (tmp_path / "log").mkdir()
    watch = watchdog.monitor(RunDirectory(tmp_path), recipe, [], ranks=[0], world_size=1, judges_deaths=False)
    watch.ended(0, 3)
    watch.conclude()
    over.set()
    assert called == ["moeframe_on_stall"]
    assert (tmp_path / "stall" / "verdict.json").exists()
    assert "takes more than 0.1 s" in caplog.text
