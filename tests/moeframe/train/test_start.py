"""The launching process: what the watchdog cannot write does not end it with a traceback."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.local import Outcome
from moeframe.trace import Place
from moeframe.train import start
from moeframe.train.failure import write_failure
from moeframe.train.resume import Opened
from moeframe.train.run_directory import RunDirectory

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"


@pytest.mark.parametrize(("unwritable", "first_failed"), [("close", None), ("conclude", 0)])
def test_a_job_whose_verdict_cannot_be_written_or_put_away_is_reported_all_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unwritable: str,
    first_failed: int | None,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    calls: dict[str, Any] = {"conclude": lambda: None, "close": lambda: None, unwritable: full}
    watch = SimpleNamespace(poll=lambda: False, every_s=1.0, ended=lambda *_: None, **calls)
    outcome = Outcome(codes=(0 if first_failed is None else -9,), first_failed=first_failed, received=0)
    monkeypatch.setattr(start, "monitor", lambda *_, **__: watch)
    monkeypatch.setattr(start, "run_local", lambda *_, **__: outcome)
    recipe = load_recipe(RECIPE).recipe
    assert start._watched(["true"], recipe, RunDirectory(tmp_path), ()) is outcome
    assert "cannot be written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("summary", "words"),
    [
        ('{"steps_done": 3, "stopped_by": 0}', "ended by SIGTERM after the last step: all 3 steps are done"),
        ("", "ended by SIGTERM before a step boundary: the last whole checkpoint is step 3; go on with `moeframe run "),
    ],
)
def test_a_run_that_a_signal_ended_says_whether_anything_is_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], summary: str, words: str
) -> None:
    whole = tmp_path / "checkpoints" / "step-3" / "COMPLETE"
    whole.parent.mkdir(parents=True)
    whole.touch()
    (tmp_path / "log").mkdir()
    if summary:
        (tmp_path / "summary.json").write_text(summary)
    assert start.report(RunDirectory(tmp_path), Outcome(codes=(-15, -15), first_failed=None, received=15)) == 143
    assert capsys.readouterr().err.startswith(words)


def test_without_a_verdict_a_rank_that_left_with_code_0_is_named_and_not_who_lost_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").mkdir()
    write_failure(tmp_path / "log", RuntimeError("Connection closed by peer"), rank=0, place=Place(step=3))
    assert start.report(RunDirectory(tmp_path), Outcome(codes=(1, 0), first_failed=0, received=0)) == 1
    assert capsys.readouterr().err.startswith(
        "rank 1 ended with exit code 0 without a report of its own; another rank lost it at step 3.\n"
    )


@pytest.mark.parametrize(
    ("overrides", "lines"),
    [
        (
            [],
            [
                "deepseek_v3_tiny: 1 process on cpu",
                "  dispatcher local, sharding replicate, schedule accumulate, compute torch",
            ],
        ),
        (
            [
                *("launch.nproc_per_node=8", "parallel.pp=2", "parallel.ep=2", "parallel.dp_replicate=2"),
                *("schedule.name=1f1b", "sharding.name=hsdp", "dispatcher.name=alltoall", "launch.device=cuda"),
                *("train.global_batch_size=16", "train.micro_batch_size=2", "train.seq_len=64", "train.steps=3"),
            ],
            [
                "deepseek_v3_tiny: 8 processes (pp 2, dp_replicate 2, dp_shard 2, ep 2) on cuda",
                "  dispatcher alltoall, sharding hsdp, schedule 1f1b, compute torch",
                "  float32, 3 steps of 1,024 tokens (2 micro-batches of 2 a rank) of python_sources",
                "run directory: RUN, from the checkpoint of step 2",
            ],
        ),
    ],
)
def test_a_run_says_its_layout_its_backends_and_its_batch(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], lines: list[str]
) -> None:
    monkeypatch.setattr(start, "why_no_cuda", lambda: "there is none")
    composition = compose(load_recipe(RECIPE, overrides), Catalog(build_plugin_manager(environment={})))
    said = start.headline(composition, Opened(run_dir=RunDirectory(Path("RUN")), step=2))
    assert said.splitlines()[: len(lines)] == lines
    assert max(map(len, said.splitlines())) <= 100
