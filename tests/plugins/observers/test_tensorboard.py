"""The observer as core calls it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from moeframe_observers import tensorboard as observer

from moeframe.hooks.manager import PluginHost, build_plugin_manager
from moeframe.protocols.loads import LayerLoad

RECIPE = SimpleNamespace(train=SimpleNamespace(loads_every=1))
METRICS: dict[str, Any] = {"loss": 7.0, "mfu": None, "time": "2026-01-01T00:00:00+00:00"}
LOADS = (LayerLoad(layer=1, mtp=False, tokens_per_expert=(3, 1)),)


@pytest.fixture
def host() -> Iterator[PluginHost]:
    one = build_plugin_manager([observer], entry_points=False, environment={})
    yield one
    one.call_each("moeframe_on_run_end", run_dir=None, rank=0, summary={})


def start(host: PluginHost, run_dir: Path, rank: int = 0) -> None:
    host.call_each("moeframe_on_run_start", recipe=RECIPE, run_dir=run_dir, rank=rank, world_size=2)


def step(host: PluginHost, number: int) -> None:
    host.call_each("moeframe_on_step_end", step=number, metrics={"step": number, **METRICS}, loads=LOADS)


def files(run_dir: Path) -> list[Path]:
    return list(run_dir.glob("tensorboard/events.out.tfevents.*"))


def test_a_run_leaves_files_and_says_how_to_look_at_them(
    host: PluginHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(host, tmp_path)
    step(host, 1)
    host.call_each("moeframe_on_run_end", run_dir=tmp_path, rank=0, summary={})
    (written,) = files(tmp_path)
    assert written.stat().st_size > 0
    assert f"tensorboard --logdir {tmp_path / 'tensorboard'}" in capsys.readouterr().out


def test_other_ranks_write_nothing(host: PluginHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(host, tmp_path, rank=1)
    step(host, 1)
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_job_that_trains_outside_a_run_directory_writes_nothing_to_an_earlier_one(
    host: PluginHost, tmp_path: Path
) -> None:
    start(host, tmp_path)
    step(host, 1)
    host.call_each("moeframe_on_run_end", run_dir=tmp_path, rank=0, summary={})
    size = files(tmp_path)[0].stat().st_size
    step(host, 2)
    assert [path.stat().st_size for path in files(tmp_path)] == [size]


def test_two_runs_in_one_process_keep_apart(host: PluginHost, tmp_path: Path) -> None:
    for name in ("one", "two"):
        start(host, tmp_path / name)
        step(host, 1)
    assert len(files(tmp_path / "one")) == len(files(tmp_path / "two")) == 1


def test_without_tensorboard_the_run_goes_on_and_the_log_says_how_to_get_it(
    host: PluginHost,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with caplog.at_level(logging.INFO):
        start(host, tmp_path)
    step(host, 1)
    assert "pip install moeframe[tensorboard]" in caplog.text
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_broken_tensorboard_is_said_with_its_cause_and_stops_no_run(
    host: PluginHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "moeframe_observers.events", raising=False)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    start(host, tmp_path)
    step(host, 1)
    said = capsys.readouterr().out
    assert "TensorBoard files are not written: ModuleNotFoundError" in said
    assert "MOEFRAME_BLOCKED_PLUGINS=tensorboard turns it off" in said


def test_a_place_that_cannot_be_written_is_said_once_and_stops_no_run(
    host: PluginHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorboard").write_text("a file, not a directory")
    start(host, tmp_path)
    step(host, 1)
    step(host, 2)
    assert capsys.readouterr().out.count("TensorBoard files are not written: FileExistsError") == 1


def test_the_variable_that_the_messages_name_turns_it_off() -> None:
    host = build_plugin_manager(environment={"MOEFRAME_BLOCKED_PLUGINS": "tensorboard"})
    assert [one.origin.target for one in host.blocked] == ["moeframe_observers.tensorboard"]
