"""A job that trains with the dispatchers, on the double, has the gradients that `alltoall` gives it."""

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
    "train.steps=2",
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "train.precision=bfloat16",
    "launch.device=cpu",
)

pytestmark = pytest.mark.usefixtures("no_folder_stays")


def gradients(overrides: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Return this rank's gradients of the second of two steps."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides]), plugins=["deepep_on_cpu"]) as job:
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
    ("name", "how"),
    [
        ("deepep_on_cpu", ("schedule.name=overlap_1f1b",)),
        ("hybridep_on_cpu", ("train.recompute=full",)),
        pytest.param("hybridep_on_cpu", ("schedule.name=overlap_1f1b",), marks=pytest.mark.sweep),
    ],
)
def test_gradients_are_those_of_alltoall_but_for_one_rounding(ranks, wanted, name: str, how: tuple[str, ...]) -> None:
    found = ranks.run(gradients, (f"dispatcher.name={name}", *how), world_size=2)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.keys() == theirs.keys()
        for key, expected in theirs.items():
            assert (mine[key] - expected).norm() <= 0.03 * expected.norm(), key
