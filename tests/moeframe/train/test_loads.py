from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.protocols.loads import LayerLoad
from moeframe.train.assemble import assemble
from moeframe.train.loads import LoadsFile, StepLoads, layer_loads, read_last_loads, read_loads
from moeframe.train.metrics import max_violation
from moeframe.train.step_file import read_steps

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
MODEL = load_recipe(RECIPE).recipe.model  # layers 0 (dense), 1, 2, and MTP module 3
SMALL = (
    "train.precision=float64",
    "train.steps=3",
    "train.seq_len=16",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "model.bias_update_speed=0.01",
    "checkpoint.final=false",
    "launch.device=cpu",
)


def load(*tokens: int) -> LayerLoad:
    return LayerLoad(layer=1, mtp=False, tokens_per_expert=tokens)


def step_loads(step: int) -> StepLoads:
    return StepLoads(step=step, layers=(load(step, 0),))


def train(folder: str, *overrides: str) -> None:
    run_dir = Path(folder)
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        job.train(run_dir, progress=False)


def test_rows_are_named_by_their_layer_in_the_whole_model() -> None:
    layers = layer_loads([[4, 4], [6, 2], [8, 0]], MODEL)
    assert [(one.layer, one.mtp, one.tokens_per_expert) for one in layers] == [
        (1, False, (4, 4)),
        (2, False, (6, 2)),
        (3, True, (8, 0)),
    ]


def test_the_worst_layer_has_the_max_violation_of_the_metrics() -> None:
    counts = [[4, 4, 4, 4], [6, 2, 1, 3], [0, 0, 0, 0]]
    layers = layer_loads(counts, MODEL)
    assert [one.max_violation for one in layers] == [0.0, 1.0, 0.0]
    assert max(one.max_violation for one in layers) == max_violation(torch.tensor(counts))
    assert layers[1].relative == (2.0, 2 / 3, 1 / 3, 1.0)


@pytest.mark.parametrize(("steps", "written"), [(6, [3, 6]), (7, [3, 6, 7]), (2, [2])])
def test_a_line_is_written_every_so_many_steps_and_at_the_end(tmp_path: Path, steps: int, written: list[int]) -> None:
    path = tmp_path / "loads.jsonl"
    file = LoadsFile(path, every=3)
    for step in range(1, steps + 1):
        file.add(step_loads(step))
    file.close()
    assert [one.step for one in read_loads(path)] == written


def test_what_is_written_is_read_back_and_stands_there_by_name(tmp_path: Path) -> None:
    path = tmp_path / "loads.jsonl"
    loads = StepLoads(step=2, layers=layer_loads([[3, 1], [2, 2], [4, 0]], MODEL))
    file = LoadsFile(path, every=1)
    file.add(loads)
    file.close()
    assert list(read_loads(path)) == [loads]
    assert read_last_loads(path) == loads
    line = json.loads(path.read_text())
    assert line["step"] == 2
    assert line["layers"][2] == {"layer": 3, "mtp": True, "max_violation": 1.0, "tokens_per_expert": [4, 0]}


def test_a_resumed_run_goes_on_after_the_loads_of_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "loads.jsonl"
    for first, last, keep in ((1, 5, 0), (4, 6, 3)):
        file = LoadsFile(path, every=2, keep_steps=keep)
        for step in range(first, last + 1):
            file.add(step_loads(step))
        file.close()
    assert [one.step for one in read_loads(path)] == [2, 4, 6]
    assert read_last_loads(path) == step_loads(6)


def test_loads_are_those_of_the_whole_job_whatever_its_layout(ranks, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    ranks.run(train, str(one), "train.loads_every=1", world_size=1)
    layout = ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=alltoall", "sharding.name=fsdp2")
    ranks.run(train, str(two), "train.loads_every=1", *layout, world_size=2)
    loads = list(read_loads(one / "loads.jsonl"))
    assert loads == list(read_loads(two / "loads.jsonl"))
    assert [each.step for each in loads] == [1, 2, 3]
    assert [(layer.layer, layer.mtp) for layer in loads[0].layers] == [(1, False), (2, False), (3, True)]
    for each, metrics in zip(loads, read_steps(one / "metrics.jsonl"), strict=True):
        assert {sum(layer.tokens_per_expert) for layer in each.layers[:2]} == {4 * 16 * 2}  # tokens x top-k
        assert max(layer.max_violation for layer in each.layers) == metrics["max_violation"]


def test_loads_every_0_writes_none(ranks, tmp_path: Path) -> None:
    ranks.run(train, str(tmp_path), "train.loads_every=0", world_size=1)
    assert (tmp_path / "metrics.jsonl").exists()
    assert not (tmp_path / "loads.jsonl").exists()
