"""Jobs that train with the backend, on the double, have the gradients that plain torch gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"
SMALL = (
    "data.name=synthetic",
    "data.options.routing=balanced",
    "model.hidden_size=128",
    "model.num_hidden_layers=2",
    "model.qk_rope_head_dim=16",
    "train.steps=2",
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "train.precision=bfloat16",
    "launch.device=cpu",
)
FP8 = ("compute.name=te_on_cpu", "compute.options.precision=fp8_blockwise")
WHOLE = ("sharding.name=replicate", "sharding.options={}")


def gradients(overrides: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return this rank's gradients of the second of two steps."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides]), plugins=["te_on_cpu"]) as job:
        trainer = Trainer(job, progress=False)
        for step in range(2):
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            found = {name: gradient.double() for name, gradient in job.sharded.full_gradients().items()}
            trainer.apply_gradients(step, computed)
        return found


@pytest.fixture(scope="module")
def wanted(ranks) -> list[dict[str, torch.Tensor]]:
    return ranks.run(gradients, (), world_size=2)


@pytest.mark.parametrize(
    ("how", "bound"),
    [
        pytest.param(("compute.name=te_on_cpu",), 0.03, id="bfloat16 fsdp2", marks=pytest.mark.sweep),
        pytest.param(FP8, 0.25, id="fp8 fsdp2"),
        pytest.param((*FP8, *WHOLE, "schedule.name=overlap_1f1b"), 0.25, id="fp8 replicate overlap"),
    ],
)
def test_gradients_are_those_of_plain_torch(ranks, wanted, how: tuple[str, ...], bound: float) -> None:
    found = ranks.run(gradients, how, world_size=2)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for key, expected in theirs.items():
            assert (mine[key] - expected).norm() <= bound * expected.norm(), key


@pytest.mark.sweep
def test_recomputing_and_poisoned_memory_change_no_bit(ranks) -> None:
    plain = ranks.run(gradients, (*FP8, *WHOLE), world_size=2)
    again = ranks.run(gradients, (*FP8, *WHOLE, "train.recompute=full", "debug.poison=true"), world_size=2)
    for mine, theirs in zip(again, plain, strict=True):
        assert all(torch.equal(mine[name], right) for name, right in theirs.items())
