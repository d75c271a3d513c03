"""A loss or gradient that is not finite on one rank: all ranks decide alike, and the report names where it arose."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.errors import JobFailedError
from moeframe.train.assemble import assemble
from moeframe.train.run_directory import RunDirectory
from moeframe.train.step_file import read_steps
from moeframe.train.trainer import Trainer

from .test_ledger import RECIPE, SMALL

PLUGINS = str(Path(__file__).parents[1] / "data" / "plugins")
TWO = ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=stuck", "dispatcher.options.layer=1")
PIPELINE = (
    "launch.nproc_per_node=4",
    "parallel.ep=2",
    "parallel.pp=2",
    "schedule.name=1f1b",
    "dispatcher.name=stuck",
    "dispatcher.options.layer=1",
    "dispatcher.options.rank=3",
)


def steps(overrides: tuple[str, ...]) -> SimpleNamespace:
    """Return the metrics of three steps, the parameters after each, and the error that ended them."""
    if PLUGINS not in sys.path:
        sys.path.insert(0, PLUGINS)
    found = SimpleNamespace(metrics=[], parameters=[], error="")
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides]), plugins=["stuck_parts"]) as job:
        trainer = Trainer(job, progress=False)
        try:
            for step in range(3):
                found.metrics.append(trainer.step(step))
                found.parameters.append(job.sharded.full_parameters())
        except JobFailedError as error:
            found.error = str(error)
            found.parameters.append(job.sharded.full_parameters())
    return found


def differing(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of parameters that both have and that differ."""
    return [name for name in some.keys() & others.keys() if not torch.equal(some[name], others[name])]


def shared(parameters: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return what every rank has alike: all but the experts of its own."""
    return {name: value for name, value in parameters.items() if "experts.routed" not in name}


CASES = [
    (
        (*TWO, "sharding.name=replicate"),
        "nan",
        "rank 1 at step 2, micro-batch 0, layer 1, dispatch (forward), in rows_RD",
    ),
    ((*TWO, "sharding.name=fsdp2"), "nan_gradient", "rank 1 at step 2, micro-batch 0, layer 1, dispatch (backward)"),
    (PIPELINE, "nan_gradient", "rank 3 at step 2, micro-batch 0, layer 1, dispatch (backward)"),
]


@pytest.mark.parametrize(("layout", "fault", "where"), CASES, ids=["replicate", "fsdp2", "pipeline"])
def test_under_skip_the_step_changes_nothing_on_any_rank_and_is_counted(ranks, layout, fault, where) -> None:
    world = 4 if layout is PIPELINE else 2
    given = (*layout, f"dispatcher.options.plan={fault}@2", "train.on_nonfinite=skip")
    found = ranks.run(steps, given, world_size=world, timeout=100)
    for one in found:
        assert not one.error
        assert [line["skipped_steps"] for line in one.metrics] == [0, 1, 1]
        assert one.metrics[1]["grad_norm"] is None
        assert not differing(one.parameters[0], one.parameters[1])
        assert differing(one.parameters[1], one.parameters[2])
        assert all(bool(value.isfinite().all()) for value in one.parameters[2].values())
        assert not differing(shared(one.parameters[2]), shared(found[0].parameters[2]))


@pytest.mark.parametrize(("layout", "fault", "where"), CASES, ids=["replicate", "fsdp2", "pipeline"])
def test_under_stop_every_rank_raises_the_same_report_of_rank_layer_and_parameter(ranks, layout, fault, where) -> None:
    world = 4 if layout is PIPELINE else 2
    found = ranks.run(steps, (*layout, f"dispatcher.options.plan={fault}@2"), world_size=world, timeout=100)
    assert len({one.error for one in found}) == 1
    error = found[0].error
    assert f"It arose on {where}" in error
    assert "First parameter with such a gradient: blocks.1.attend." in error
    assert "No parameter was changed" in error
    for one in found:
        assert len(one.metrics) == 1
        assert not differing(one.parameters[0], one.parameters[1])


def test_a_validation_loss_that_is_not_finite_is_null_in_the_files_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "evaluate", lambda _: float("nan"))
    run_dir = RunDirectory(tmp_path)
    with assemble(
        load_recipe(RECIPE, [*SMALL, "train.steps=1", "train.eval_every=1", "checkpoint.final=false"])
    ) as job:
        summary = Trainer(job, run_dir, progress=False).run()
    run_dir.write_json("summary.json", summary.as_json())
    (line,) = read_steps(run_dir.metrics_file)
    assert line["validation_loss"] is None
    assert json.loads((tmp_path / "summary.json").read_text())["validation_loss"] is None
