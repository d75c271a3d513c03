"""zero1 and hsdp compute on the real model what one process computes, and checkpoints go from each sharding to each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError
from moeframe.testing.ranks import RankPool
from moeframe.train.assemble import Job, assemble
from moeframe.train.checkpoint import Checkpoints
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"

SMALL = (
    "train.precision=float64",
    "train.steps=2",
    "train.seq_len=16",
    "train.global_batch_size=8",
    "train.micro_batch_size=1",
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.moe_intermediate_size=24",
    "model.num_hidden_layers=2",
    "model.q_lora_rank=16",
    "model.kv_lora_rank=16",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "optimizer.clip_grad_norm=0.5",
    "launch.device=cpu",
    "data.name=synthetic",
)

Layout = tuple[str, int, int, int]
"""Sharding, world size, ep, dp_replicate."""

LAYOUTS: list[Layout] = [
    *(("zero1", *sizes) for sizes in [(1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 2, 1), (4, 4, 1), (4, 1, 2), (4, 2, 2)]),
    *(("hsdp", *sizes) for sizes in [(2, 1, 2), (4, 1, 2), (4, 2, 2), (4, 1, 4)]),
]


@dataclass
class Numbers:
    """What optimizer steps left behind, by global name; experts by their global id."""

    losses: list[float]
    norms: list[float]
    gradients: dict[str, torch.Tensor]
    parameters: dict[str, torch.Tensor]
    biases: dict[str, torch.Tensor]


def whole(job: Job, local: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put the experts of all ep ranks together."""
    group, size = job.meshes.group("ep"), job.meshes.size("ep")
    found = {}
    for name, tensor in local.items():
        parts = [tensor]
        if size > 1 and ".routed." in name:
            parts = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(parts, tensor.contiguous(), group=group)
        found[name] = torch.cat(parts)
    return found


def train(job: Job, trainer: Trainer, steps: range) -> Numbers:
    losses, norms = [], []
    gradients: dict[str, torch.Tensor] = {}
    for step in steps:
        computed = trainer.compute_gradients(step)
        assert isinstance(computed, Computed)
        gradients |= {f"step {step}: {k}": v for k, v in whole(job, job.sharded.full_gradients()).items()}
        metrics = trainer.apply_gradients(step, computed)
        losses.append([metrics[key] for key in ("loss", "ce_loss", "mtp_loss", "balance_loss", "max_violation")])
        norms.append(metrics["grad_norm"])
    return Numbers(
        losses=losses,
        norms=norms,
        gradients=gradients,
        parameters=whole(job, job.sharded.full_parameters()),
        biases={name: buffer.clone() for name, buffer in job.model.named_buffers() if "bias" in name},
    )


def two_steps(overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        return train(job, Trainer(job, progress=False), range(2))


def save_after_one_step(path: Path, overrides: tuple[str, ...]) -> None:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        train(job, Trainer(job, progress=False), range(1))
        checkpoints = Checkpoints(path, job, keep=1)
        checkpoints.save(1)
        checkpoints.wait()


def resume_for_one_step(path: Path, overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        Checkpoints(path, job, keep=1).load(1)
        return train(job, trainer, range(1, 2))


def assert_same(numbers: Numbers, oracle: Numbers) -> None:
    assert len(numbers.losses) == len(oracle.losses)
    for mine, theirs in zip(numbers.losses, oracle.losses, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)
    assert numbers.norms == pytest.approx(oracle.norms, rel=1e-9)
    for kind in ("gradients", "parameters", "biases"):
        mine, theirs = getattr(numbers, kind), getattr(oracle, kind)
        assert mine.keys() == theirs.keys()
        for name, expected in theirs.items():
            error = (mine[name] - expected).abs().max().item()
            scale = expected.abs().max().item()
            ratio = (mine[name].norm() / expected.norm()).item()
            assert error <= 1e-9 * max(scale, 1e-12), f"{kind} {name}: off by {error} of {scale}, ratio {ratio:.6f}"


def overrides_of(layout: Layout) -> tuple[str, ...]:
    sharding, world, ep, dp_replicate = layout
    return (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"parallel.dp_replicate={dp_replicate}",
        f"sharding.name={sharding}",
        f"dispatcher.name={'alltoall' if ep > 1 else 'local'}",
    )


@pytest.fixture(scope="module")
def oracle(ranks: RankPool) -> Numbers:
    numbers = ranks.run(two_steps, overrides_of(("replicate", 1, 1, 1)), world_size=1)[0]
    assert all(bias.abs().sum() > 0 for bias in numbers.biases.values())
    assert all(gradient.abs().sum() > 0 for gradient in numbers.gradients.values())
    return numbers


BY_DEFAULT = (("zero1", 2, 2, 1), ("zero1", 4, 1, 2), ("hsdp", 4, 2, 2))
"""Of the layouts; `tests/moeframe/verify/test_matrix.py` has more of them."""


@pytest.mark.parametrize(
    "layout",
    [layout if layout in BY_DEFAULT else pytest.param(layout, marks=pytest.mark.sweep) for layout in LAYOUTS],
    ids=str,
)
def test_every_layout_gives_the_numbers_of_one_process(ranks: RankPool, oracle: Numbers, layout: Layout) -> None:
    for numbers in ranks.run(two_steps, overrides_of(layout), world_size=layout[1]):
        assert_same(numbers, oracle)


ODD = (
    "model.n_routed_experts=6",
    "model.n_group=3",
    "model.topk_group=2",
    "model.hidden_size=30",
    "model.intermediate_size=37",
    "model.moe_intermediate_size=7",
    "model.q_lora_rank=9",
    "model.kv_lora_rank=11",
)
FEW = (
    "model.n_routed_experts=2",
    "model.n_group=1",
    "model.topk_group=1",
    "model.num_experts_per_tok=1",
    "model.moe_intermediate_size=3",
)


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        (("fsdp2", 4, 2, 1), ODD),
        (("fsdp2", 4, 1, 1), FEW),
        pytest.param(("fsdp2", 4, 1, 1), ODD, marks=pytest.mark.sweep),
        pytest.param(("fsdp2", 4, 2, 1), FEW, marks=pytest.mark.sweep),
        pytest.param(("zero1", 4, 1, 1), ODD, marks=pytest.mark.sweep),
        pytest.param(("zero1", 4, 2, 1), FEW, marks=pytest.mark.sweep),
        pytest.param(("hsdp", 4, 2, 2), ODD, marks=pytest.mark.sweep),
        pytest.param(("hsdp", 4, 1, 2), FEW, marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_sizes_that_no_number_of_ranks_divides_change_no_number_c35(
    ranks: RankPool, layout: Layout, sizes: tuple[str, ...]
) -> None:
    """Three experts on two holders, two on four; widths that leave some ranks a row more, or none."""
    (expected,) = ranks.run(two_steps, (*overrides_of(("replicate", 1, 1, 1)), *sizes), world_size=1)
    for numbers in ranks.run(two_steps, (*overrides_of(layout), *sizes), world_size=layout[1]):
        assert_same(numbers, expected)


NOTHING_FREED = ("sharding.options.reshard_after_forward=false",)
EXPERTS_KEPT = ("sharding.options.reshard_experts_after_forward=false",)
EXPERTS_FREED = (*NOTHING_FREED, "sharding.options.reshard_experts_after_forward=true")


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        pytest.param(("fsdp2", 4, 2, 1), NOTHING_FREED, marks=pytest.mark.sweep),
        pytest.param(("hsdp", 4, 2, 2), NOTHING_FREED, marks=pytest.mark.sweep),
        (("fsdp2", 4, 2, 1), EXPERTS_KEPT),
        pytest.param(("hsdp", 4, 2, 2), EXPERTS_KEPT, marks=pytest.mark.sweep),
        pytest.param(("fsdp2", 4, 2, 1), EXPERTS_FREED, marks=pytest.mark.sweep),
        (("hsdp", 4, 2, 2), EXPERTS_FREED),
    ],
    ids=str,
)
def test_what_is_freed_after_the_forward_changes_no_number(
    ranks: RankPool, oracle: Numbers, layout: Layout, options: tuple[str, ...]
) -> None:
    for numbers in ranks.run(two_steps, (*overrides_of(layout), *options), world_size=layout[1]):
        assert_same(numbers, oracle)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        (("zero1", 4, 2, 1), ("schedule.name=1f1b",)),
        (("zero1", 4, 2, 1), ("schedule.name=zbv", "model.num_hidden_layers=4")),
        (("hsdp", 4, 1, 2), ("schedule.name=1f1b",)),
        (("hsdp", 4, 1, 2), ("schedule.name=gpipe",)),
    ],
    ids=str,
)
def test_pipeline_stages_are_sharded_alike(ranks: RankPool, layout: Layout, schedule: tuple[str, ...]) -> None:
    """Two stages of two data ranks; each rank holds a part of the model."""
    (expected,) = ranks.run(two_steps, tuple(s for s in schedule if s.startswith("model.")), world_size=1)
    found = ranks.run(two_steps, (*overrides_of(layout), "parallel.pp=2", *schedule), world_size=4)
    for kind in ("gradients", "parameters", "biases"):
        names = set().union(*(getattr(numbers, kind) for numbers in found))
        assert names == getattr(expected, kind).keys()
    for numbers in found:
        part = Numbers(
            losses=expected.losses,
            norms=expected.norms,
            gradients={name: expected.gradients[name] for name in numbers.gradients},
            parameters={name: expected.parameters[name] for name in numbers.parameters},
            biases={name: expected.biases[name] for name in numbers.biases},
        )
        assert_same(numbers, part)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(("fsdp2", 4, 2, 1), ("zero1", 4, 1, 1), marks=pytest.mark.sweep),
        pytest.param(("zero1", 4, 2, 1), ("fsdp2", 2, 2, 1), marks=pytest.mark.sweep),
        (("zero1", 2, 1, 1), ("hsdp", 4, 2, 2)),
        pytest.param(("hsdp", 4, 1, 2), ("zero1", 4, 4, 1), marks=pytest.mark.sweep),
        (("hsdp", 4, 2, 2), ("replicate", 1, 1, 1)),
        pytest.param(("replicate", 2, 2, 1), ("hsdp", 4, 1, 4), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_a_checkpoint_of_one_sharding_goes_on_in_another(
    ranks: RankPool, oracle: Numbers, tmp_path: Path, before: Layout, after: Layout
) -> None:
    ranks.run(save_after_one_step, tmp_path, overrides_of(before), world_size=before[1])
    second = Numbers(
        losses=oracle.losses[1:],
        norms=oracle.norms[1:],
        gradients={name: tensor for name, tensor in oracle.gradients.items() if name.startswith("step 1")},
        parameters=oracle.parameters,
        biases=oracle.biases,
    )
    for numbers in ranks.run(resume_for_one_step, tmp_path, overrides_of(after), world_size=after[1]):
        assert_same(numbers, second)


@pytest.mark.parametrize(
    "layout",
    [
        ("zero1", 4, 2, 1),
        pytest.param(("zero1", 2, 1, 1), marks=pytest.mark.sweep),
        pytest.param(("hsdp", 4, 1, 2), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_c42_resuming_gives_equal_bits(ranks: RankPool, tmp_path: Path, layout: Layout) -> None:
    overrides = (*overrides_of(layout), "train.precision=bfloat16")
    straight = ranks.run(two_steps, overrides, world_size=layout[1])
    ranks.run(save_after_one_step, tmp_path, overrides, world_size=layout[1])
    resumed = ranks.run(resume_for_one_step, tmp_path, overrides, world_size=layout[1])
    for mine, theirs in zip(resumed, straight, strict=True):
        assert (mine.losses, mine.norms) == (theirs.losses[1:], theirs.norms[1:])
        assert [
            name for name, value in theirs.parameters.items() if not torch.equal(mine.parameters[name], value)
        ] == []


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (("hsdp", 4, 2, 1), r"parallel.dp_replicate: given 1; sharding 'hsdp' .* Use parallel\.dp_replicate=2;"),
        (("fsdp2", 4, 1, 2), "parallel.dp_replicate: given 2; sharding 'fsdp2' knows no replicas of its shards"),
        (("hsdp", 4, 4, 2), r"parallel.ep: 4 does not divide both the 2 data ranks of one replica .* Legal: 1, 2"),
    ],
    ids=str,
)
def test_layouts_without_a_meaning_are_refused(layout: Layout, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        assemble(load_recipe(RECIPE, [*SMALL, *overrides_of(layout)]))
