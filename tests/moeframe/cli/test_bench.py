"""What `moeframe bench overlap` refuses before it starts a process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeframe.bench.baseline import plain_schedule
from moeframe.cli.bench import bench_overlap
from moeframe.errors import PluginError, TopologyError, UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.precision import Precision

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "overlap_2gpu.yaml"


def refused(tmp_path: Path, *overrides: str, rounds: int = 1, slow_us: float = 0.0) -> str:
    with pytest.raises(UserInputError) as caught:
        bench_overlap(RECIPE, overrides, (), out=tmp_path / "out", rounds=rounds, slow_us=slow_us)
    assert not (tmp_path / "out").exists()
    return str(caught.value)


def test_a_machine_with_too_few_gpus_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    said = refused(tmp_path)
    assert "the recipe has 2 process(es), and this machine 1 GPU(s)" in said
    assert "A CPU has no streams" in said


def test_a_schedule_without_overlap_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "schedule.name=accumulate")
    assert said.endswith("there is no overlap to measure. Use schedule.name=overlap_1f1b.")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    (tmp_path / "taken").touch()
    text = refused(tmp_path / "taken", "schedule.name=overlap_1f1b")
    assert text == f"--out {tmp_path / 'taken' / 'out'}: cannot be written (Not a directory). Name another folder."


def test_numbers_out_of_range_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)  # told before the GPUs that are missing
    assert "--rounds 0" in refused(tmp_path, rounds=0)
    for slow_us, shown in ((-1.0, "-1"), (float("nan"), "nan"), (float("inf"), "inf")):
        assert f"--slow {shown}: at least 1 round" in refused(tmp_path, slow_us=slow_us)


def test_another_launcher_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TopologyError, match="starts its own processes"):
        bench_overlap(RECIPE, (), (), out=tmp_path / "out", rounds=1, slow_us=0.0)


def test_the_schedule_to_compare_with_is_found_by_its_traits() -> None:
    assert plain_schedule(Catalog(build_plugin_manager()), Precision.of("bfloat16")).name == "accumulate"
    alone = Catalog(build_plugin_manager(("moeframe_overlap.plugin",), entry_points=False, environment={}))
    with pytest.raises(PluginError, match="to compare with"):
        plain_schedule(alone, Precision.of("bfloat16"))
