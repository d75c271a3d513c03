"""`megatron_fsdp` on the package itself: the published kit on two GPUs, and ten optimizer steps beside `replicate`.

The kit's tolerance in float32 is 1e-4 of a tensor's largest value. Beside `replicate`: losses within 1e-5 and every
weight after ten steps within 1e-4 of its norm in float32; 1e-2 and 5e-2 in bfloat16.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from moeframe_megatron_fsdp.plugin import moeframe_offer_shardings

from moeframe.config.load import load_recipe
from moeframe.mesh.degrees import Degrees
from moeframe.testing.sharding_suite import ShardingConformance
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"
STEPS = 10
SMALL = (
    "data.name=synthetic",
    "data.options.routing=balanced",
    f"train.steps={STEPS}",
    "train.seq_len=64",
    "train.global_batch_size=8",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "optimizer.lr=0.01",
    "model.hidden_size=128",
    "launch.device=cuda",
    "launch.nproc_per_node=2",
)
TOLERANCES = {"float32": (1e-5, 1e-4), "bfloat16": (1e-2, 5e-2)}
CELLS = [
    # precision, dispatcher, zero, ep, dp_replicate, recompute
    ("float32", "alltoall", 1, 2, 1, "none"),
    ("float32", "local", 2, 1, 1, "none"),
    ("float32", "alltoall", 3, 2, 1, "none"),
    ("float32", "local", 3, 1, 2, "none"),
    ("bfloat16", "local", 1, 1, 1, "none"),
    ("bfloat16", "alltoall", 2, 2, 1, "none"),
    *(
        ("bfloat16", dispatcher, 3, 1 if dispatcher == "local" else 2, 1, recompute)
        for dispatcher in ("local", "allgather", "alltoall", "deepep", "hybridep")
        for recompute in ("none", "full", "selective")
    ),
]


def layout(ep: int) -> Degrees:
    return Degrees(world=2, pp=1, dp_replicate=1, ep=ep)


@pytest.fixture(autouse=True)
def usable(require_usable) -> None:
    require_usable("sharding", "megatron_fsdp")


class OnTwoGpus(ShardingConformance):
    __test__ = False
    (offer,) = moeframe_offer_shardings()
    device = "cuda"
    timeout_s = 120.0


class TestZero3(OnTwoGpus):
    """Experts with one holder each."""

    __test__ = True
    options: ClassVar[dict[str, int]] = {"zero": 3}
    layouts = (layout(2),)


class TestZero2(OnTwoGpus):
    """Experts with two holders; buckets so small that each holds a parameter or two."""

    __test__ = True
    options: ClassVar[dict[str, int]] = {"zero": 2, "bucket_elements": 50}
    layouts = (layout(1),)


class TestZero1(OnTwoGpus):
    __test__ = True
    options: ClassVar[dict[str, int]] = {"zero": 1}
    layouts = (layout(2),)


@dataclass
class Numbers:
    """What the steps left behind on a rank; experts are the local ones."""

    losses: list[float]
    norms: list[float]
    weights: dict[str, torch.Tensor]


def ten_steps(overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        found = Numbers([], [], {})
        for step in range(STEPS):
            computed = trainer.compute_gradients(step)
            assert isinstance(computed, Computed)
            metrics = trainer.apply_gradients(step, computed)
            found.losses.append(float(metrics["loss"]))
            found.norms.append(float(metrics["grad_norm"]))
        found.weights = {name: weight.double().cpu() for name, weight in job.sharded.full_parameters().items()}
        return found


@pytest.fixture(scope="module")
def replicated(ranks):
    known: dict[tuple[str, ...], list[Numbers]] = {}

    def of(axes: tuple[str, ...]) -> list[Numbers]:
        if axes not in known:
            overrides = (*axes, "sharding.name=replicate", "sharding.options={}")
            known[axes] = ranks.run(ten_steps, overrides, world_size=2, timeout=120)
        return known[axes]

    return of


class Cells:
    """Those of one dispatcher."""

    dispatcher: ClassVar[str]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        cells = [cell for cell in CELLS if cell[1] == self.dispatcher]
        metafunc.parametrize("cell", cells, ids=lambda cell: "-".join(map(str, cell)))

    def test_ten_steps_are_those_of_replicate(self, ranks, replicated, require_usable, proved, cell) -> None:
        precision, dispatcher, zero, ep, dp_replicate, recompute = cell
        require_usable("dispatcher", dispatcher)
        axes = (f"train.precision={precision}", f"parallel.ep={ep}", f"dispatcher.name={dispatcher}")
        sharding = (
            "sharding.name=megatron_fsdp",
            f"sharding.options={{zero: {zero}}}",
            f"parallel.dp_replicate={dp_replicate}",
            f"train.recompute={recompute}",
        )
        for_losses, for_weights = TOLERANCES[precision]
        worst = 0.0
        found = ranks.run(ten_steps, (*axes, *sharding), world_size=2, timeout=120)
        for numbers, wanted in zip(found, replicated(axes), strict=True):
            assert numbers.losses == pytest.approx(wanted.losses, rel=for_losses)
            assert numbers.norms == pytest.approx(wanted.norms, rel=for_weights)
            assert numbers.weights.keys() == wanted.weights.keys()
            for name, expected in wanted.weights.items():
                error = ((numbers.weights[name] - expected).norm() / expected.norm().clamp(min=1e-12)).item()
                worst = max(worst, error)
                assert error <= for_weights, f"{name}: {error:.3g}"
        overrides = (
            f"dispatcher.name={dispatcher}",
            *sharding,
            "schedule.name=accumulate",
            f"parallel.ep={ep}",
            "launch.nproc_per_node=2",
            f"train.precision={precision}",
        )
        if zero == 3:
            how = (
                f"ten optimizer steps of the tiny model in {precision} are those of sharding replicate: weights within "
                f"{worst:.1e} (at most {for_weights:g}), losses within {for_losses:g}"
            )
            proved(overrides, how)


class TestLocal(Cells):
    dispatcher = "local"


class TestAllGather(Cells):
    dispatcher = "allgather"


class TestAllToAll(Cells):
    dispatcher = "alltoall"


class TestDeepEP(Cells):
    dispatcher = "deepep"


class TestHybridEP(Cells):
    dispatcher = "hybridep"
