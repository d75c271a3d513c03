from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from .conftest import SMALL, TINY, TWO, Runner

KEYS = (  # noqa: SIM905
    "step loss ce_loss balance_loss mtp_loss grad_norm lr tokens tokens_per_second step_ms mfu max_violation "
    "dead_experts dropped_tokens peak_memory_bytes time"
).split()


def test_a_run_leaves_what_the_design_says(moeframe: Runner) -> None:
    ended = moeframe("run", str(TINY), *SMALL, *TWO, "sharding.name=fsdp2", "train.eval_every=3")
    assert ended.code == 0, ended.err
    assert [line["step"] for line in ended.metrics] == [1, 2, 3, 4, 5, 6]
    for line in ended.metrics:
        assert [key for key in KEYS if key not in line] == []
        assert line["tokens"] == 4 * 16
        assert line["loss"] > line["ce_loss"] > 0
    assert abs(ended.metrics[0]["ce_loss"] - math.log(256)) < 0.2
    assert [step for step, line in enumerate(ended.metrics, 1) if "validation_loss" in line] == [3, 6]
    run_dir = ended.run_dir
    assert [rank["rank"] for rank in json.loads((run_dir / "ranks.json").read_text())] == [0, 1]
    assert "torch" in json.loads((run_dir / "environment.json").read_text())["versions"]
    assert {path.name for path in (run_dir / "log").iterdir()} >= {"rank-0.log", "rank-1.log"}
    assert (run_dir / "checkpoints" / "step-6" / "COMPLETE").is_file()
    assert f"metrics: {run_dir.relative_to(moeframe.cwd)}" in ended.out


@pytest.mark.sweep
def test_the_resolved_recipe_gives_the_same_run_again(moeframe: Runner) -> None:
    first = moeframe("run", str(TINY), *SMALL)
    again = moeframe("run", str(first.run_dir / "recipe.yaml"))
    assert again.code == 0, again.err
    assert [line["loss"] for line in first.metrics] == [line["loss"] for line in again.metrics]


def test_torchrun_is_joined(moeframe: Runner) -> None:
    ended = moeframe.torchrun("run", str(TINY), *SMALL, *TWO)
    assert ended.code == 0, ended.err
    assert "done: 6 steps" in ended.out
    (metrics,) = moeframe.cwd.glob("runs/*/*/metrics.jsonl")
    own = moeframe("run", str(TINY), *SMALL, *TWO)
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["loss"] for line in lines] == [line["loss"] for line in own.metrics]


def test_c137_a_world_of_another_size_is_refused_on_every_rank(moeframe: Runner) -> None:
    ended = moeframe.torchrun("run", str(TINY), *SMALL)
    assert ended.code != 0
    assert "2 process(es) were started, and the recipe wants 1" in ended.err


def test_an_unwritable_place_is_refused_before_a_process_starts(moeframe: Runner) -> None:
    (moeframe.cwd / "taken").write_text("a file, not a directory")
    ended = moeframe("run", str(TINY), *SMALL, "train.output_dir=taken")
    assert ended.code == 2
    assert "train.output_dir = 'taken'" in ended.err
    assert "Traceback" not in ended.err


def test_c66_too_little_data_ends_with_the_numbers(moeframe: Runner) -> None:
    ended = moeframe(
        "--plugin", "faulty_data", "run", str(TINY), *SMALL, *TWO, "data.name=faulty", "data.options.sequences=3"
    )
    assert ended.code == 2
    assert "has 3 sequences" in ended.err
    assert "Traceback" not in ended.err


def test_an_unknown_plugin_is_named(moeframe: Runner) -> None:
    ended = moeframe("run", str(TINY), *SMALL, "dispatcher.name=alltoal")
    assert ended.code == 2
    assert "alltoall" in ended.err
    assert not Path(moeframe.cwd / "runs").exists()
