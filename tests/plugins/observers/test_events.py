"""What TensorBoard reads back from the files of a run."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moeframe_observers.events import EventWriter, heat_map
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from moeframe.protocols.loads import LayerLoad

LOADS = (
    LayerLoad(layer=3, mtp=False, tokens_per_expert=(6, 2, 0, 0)),
    LayerLoad(layer=61, mtp=True, tokens_per_expert=(2, 2, 2, 2)),
)
METRICS: dict[str, Any] = {
    "loss": 7.0, "ce_loss": 5.5, "balance_loss": 0.25, "mtp_loss": 5.0, "grad_norm": 4.0, "lr": 0.5, "tokens": 4096,
    "tokens_per_second": 2000.0, "step_ms": 8.0, "mfu": None, "max_violation": 2.0, "dead_experts": 2,
    "dropped_tokens": 0, "peak_memory_bytes": 1024, "time": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


def write(directory: Path, steps: range, *, loads_every: int = 2, **more: Any) -> None:
    writer = EventWriter(directory, loads_every=loads_every)
    for step in steps:
        writer.write(step, {"step": step, **METRICS, **more}, LOADS)
    writer.close()


def read(directory: Path) -> EventAccumulator:
    return EventAccumulator(str(directory), size_guidance={"scalars": 0, "images": 0, "histograms": 0}).Reload()


def scalars(directory: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(directory).Scalars(tag)]


def test_every_number_of_a_step_is_a_scalar_in_its_group(tmp_path: Path) -> None:
    write(tmp_path, range(1, 2), loads_every=0, validation_loss=3.5)
    found = read(tmp_path)
    assert {tag: found.Scalars(tag)[0].value for tag in found.Tags()["scalars"]} == {
        "loss/total": 7.0,
        "loss/ce": 5.5,
        "loss/mtp": 5.0,
        "loss/balance": 0.25,
        "loss/validation": 3.5,
        "optimizer/grad_norm": 4.0,
        "optimizer/lr": 0.5,
        "speed/tokens": 4096.0,
        "speed/tokens_per_second": 2000.0,
        "speed/step_ms": 8.0,
        "memory/peak_bytes": 1024.0,
        "expert_load/max_violation": 2.0,
        "expert_load/dead_experts": 2.0,
        "expert_load/dropped_tokens": 0.0,
    }
    assert found.Scalars("loss/ce")[0].wall_time == 1767225600.0


def test_a_metric_of_a_later_version_is_not_lost(tmp_path: Path) -> None:
    write(tmp_path, range(1, 2), queue_length=3)
    assert scalars(tmp_path, "other/queue_length") == [(1, 3.0)]


def test_a_loss_that_is_not_a_number_is_written_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3), ce_loss=math.nan)
    assert [math.isnan(value) for _, value in scalars(tmp_path, "loss/ce")] == [True, True]


def test_loads_are_written_every_so_many_steps_by_layer(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6), loads_every=2)
    found = read(tmp_path)
    assert set(found.Tags()["histograms"]) == {
        "expert_load_by_layer/layer_003",
        "expert_load_by_layer/layer_061_mtp",
    }
    histograms = found.Histograms("expert_load_by_layer/layer_003")
    assert [one.step for one in histograms] == [2, 4]
    values = histograms[0].histogram_value
    assert (values.min, values.max, values.num, values.sum) == (0.0, 3.0, 4, 4.0)
    assert scalars(tmp_path, "max_violation_by_layer/layer_003") == [(2, 2.0), (4, 2.0)]
    assert scalars(tmp_path, "max_violation_by_layer/layer_061_mtp") == [(2, 0.0), (4, 0.0)]
    pictures = found.Images("expert_load/layers_by_experts")
    assert [one.step for one in pictures] == [2, 4]
    with Image.open(io.BytesIO(pictures[0].encoded_image_string)) as picture:
        assert np.array_equal(np.asarray(picture), heat_map(LOADS))


@pytest.mark.parametrize("loads", [(), LOADS])
def test_loads_every_0_and_a_model_without_experts_write_no_loads(tmp_path: Path, loads: tuple[LayerLoad, ...]) -> None:
    writer = EventWriter(tmp_path, loads_every=0 if loads else 1)
    writer.write(1, METRICS, loads)
    writer.close()
    tags = read(tmp_path).Tags()
    assert (tags["images"], tags["histograms"]) == ([], [])


def test_a_step_is_on_disk_when_it_is_over(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path, loads_every=0)
    writer.write(1, METRICS, LOADS)
    assert scalars(tmp_path, "loss/ce") == [(1, 5.5)]
    writer.close()


def test_a_resumed_run_hides_the_steps_that_it_trains_again(tmp_path: Path) -> None:
    write(tmp_path, range(1, 6), ce_loss=1.0)
    write(tmp_path, range(4, 7), ce_loss=2.0)
    assert scalars(tmp_path, "loss/ce") == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0), (6, 2.0)]


def test_the_picture_has_a_cell_for_each_expert_white_at_the_mean_and_red_above() -> None:
    picture = heat_map(LOADS)
    assert (picture.shape, picture.dtype) == ((2 * 32, 4 * 32, 3), np.uint8)
    red, _, blue = picture[0, 0].astype(int)
    assert red > blue + 50
    assert picture[-1, 0].min() > 240
    red, _, blue = picture[0, -1].astype(int)
    assert blue > red + 50


def test_the_picture_of_256_experts_is_no_wider_than_a_screen() -> None:
    loads = [LayerLoad(layer=layer, mtp=False, tokens_per_expert=(1,) * 256) for layer in range(3, 61)]
    assert heat_map(loads).shape == (58 * 4, 1024, 3)
