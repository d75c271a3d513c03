"""Every pipeline schedule computes what one process computes: float64, with EP and each sharding inside the stages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from moeframe.config import fit
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError
from moeframe.model.stages import StagedModel
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
    "train.eval_every=1",
    "train.eval_sequences=5",
    "model.hidden_size=32",
    "model.intermediate_size=48",
    "model.moe_intermediate_size=24",
    "model.num_hidden_layers=5",
    "model.q_lora_rank=16",
    "model.kv_lora_rank=16",
    "model.aux_loss_alpha=0.01",
    "model.bias_update_speed=0.01",
    "optimizer.lr=0.01",
    "optimizer.clip_grad_norm=0.5",
    "launch.device=cpu",
    "data.name=synthetic",
)

SCHEDULES = {
    "gpipe": (),
    "1f1b": (),
    "interleaved_1f1b": ("schedule.options.stages_per_rank=2",),
    "zero_bubble": ("schedule.options.stages_per_rank=2",),
    "zbv": (),
    "dualpipev": (),
}
SPLIT = ("zero_bubble", "zbv", "dualpipev")


@dataclass
class Numbers:
    """What two optimizer steps with a validation between them left on a rank, by global name and expert id."""

    losses: list[float]
    norms: list[float]
    loads: list[Any]
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
        found[name] = torch.cat(parts) if len(parts) > 1 else tensor
    return found


def train(job: Job, trainer: Trainer, steps: range) -> Numbers:
    losses, norms, loads = [], [], []
    gradients: dict[str, torch.Tensor] = {}
    for step in steps:
        computed = trainer.compute_gradients(step)
        assert isinstance(computed, Computed)
        gradients |= {f"step {step}: {k}": v for k, v in whole(job, job.sharded.full_gradients()).items()}
        metrics = trainer.apply_gradients(step, computed)
        losses += [metrics[key] for key in ("loss", "ce_loss", "mtp_loss", "balance_loss", "max_violation")]
        losses.append(trainer.evaluate())
        norms.append(metrics["grad_norm"])
        loads.append(trainer._loads)
    return Numbers(
        losses=losses,
        norms=norms,
        loads=loads,
        gradients=gradients,
        parameters=whole(job, job.sharded.full_parameters()),
        biases={name: buffer.clone() for name, buffer in job.model.named_buffers() if "bias" in name},
    )


def two_steps(overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        return train(job, Trainer(job, progress=False), range(2))


def assert_same(found: list[Numbers], oracle: Numbers) -> None:
    """Every rank's numbers are the oracle's, and together the ranks hold all of it."""
    for numbers in found:
        assert numbers.losses == pytest.approx(oracle.losses, rel=1e-9)
        assert numbers.norms == pytest.approx(oracle.norms, rel=1e-9)
        assert numbers.loads == oracle.loads
    for kind in ("gradients", "parameters", "biases"):
        expected = getattr(oracle, kind)
        assert set().union(*(getattr(numbers, kind) for numbers in found)) == expected.keys()
        for numbers in found:
            for name, tensor in getattr(numbers, kind).items():
                error = (tensor - expected[name]).abs().max().item()
                scale = expected[name].abs().max().item()
                ratio = (tensor.norm() / expected[name].norm()).item()
                assert error <= 1e-9 * max(scale, 1e-12), f"{kind} {name}: off by {error} of {scale}, ratio {ratio:.6f}"


def layout(world: int, ep: int, *, pp: int = 2) -> tuple[str, ...]:
    return (
        f"launch.nproc_per_node={world}",
        f"parallel.pp={pp}",
        f"parallel.ep={ep}",
        f"dispatcher.name={'alltoall' if ep > 1 else 'local'}",
        f"train.micro_batch_size={2 if world // pp == 1 else 1}",
    )


def composed(schedule: str, sharding: str) -> tuple[str, ...]:
    keeps = (
        ("sharding.options.reshard_after_forward=false",) if sharding in ("fsdp2", "hsdp") and schedule in SPLIT else ()
    )
    return (f"schedule.name={schedule}", *SCHEDULES[schedule], f"sharding.name={sharding}", *keeps)


@pytest.fixture(scope="module")
def oracle(ranks: RankPool) -> Numbers:
    numbers = ranks.run(two_steps, (), world_size=1)[0]
    assert len(numbers.biases) == 5
    assert any(bias.abs().sum() > 0 for bias in numbers.biases.values())
    assert all(gradient.abs().sum() > 0 for gradient in numbers.gradients.values())
    return numbers


def swept(*cases: tuple[Any, ...], default: tuple[tuple[Any, ...], ...]) -> list[Any]:
    """Return cases of which only some run by default."""
    return [case if case in default else pytest.param(*case, marks=pytest.mark.sweep) for case in cases]


@pytest.mark.parametrize(
    ("schedule", "world", "ep", "sharding"),
    swept(
        *itertools.product(SCHEDULES, [2], [1], ["replicate", "fsdp2"]),
        *itertools.product(SCHEDULES, [4], [2], ["replicate", "fsdp2"]),
        default=(
            ("gpipe", 2, 1, "replicate"),
            ("1f1b", 4, 2, "fsdp2"),
            ("interleaved_1f1b", 2, 1, "fsdp2"),
            ("zero_bubble", 4, 2, "replicate"),
            ("zbv", 2, 1, "replicate"),
            ("dualpipev", 2, 1, "fsdp2"),
        ),
    ),
)
def test_every_schedule_gives_the_numbers_of_one_process(
    ranks: RankPool, oracle: Numbers, schedule: str, world: int, ep: int, sharding: str
) -> None:
    overrides = (*layout(world, ep), *composed(schedule, sharding))
    assert_same(ranks.run(two_steps, overrides, world_size=world), oracle)


@pytest.mark.sweep
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_1f1b", "zbv"])
@pytest.mark.parametrize("sharding", ["zero1", "hsdp"])
def test_other_shardings_work_inside_stages(ranks: RankPool, oracle: Numbers, schedule: str, sharding: str) -> None:
    overrides = (*layout(4, 2 if sharding == "zero1" else 1), *composed(schedule, sharding))
    replicas = ("parallel.dp_replicate=2",) if sharding == "hsdp" else ()
    assert_same(ranks.run(two_steps, (*overrides, *replicas), world_size=4), oracle)


@pytest.fixture(scope="module")
def eight_ranks() -> Iterator[RankPool]:
    with RankPool(8) as pool:
        yield pool


@pytest.mark.sweep
@pytest.mark.parametrize("recompute", ["none", "full", "selective"])
@pytest.mark.parametrize("schedule", list(SCHEDULES))
@pytest.mark.parametrize("dispatcher", ["allgather", "alltoall"])
def test_replicas_of_pipelines_with_expert_parallelism_need_eight_ranks(
    eight_ranks: RankPool, dispatcher: str, schedule: str, recompute: str
) -> None:
    """The one shape that the matrix of proofs, on four ranks, cannot hold."""
    batch = "train.global_batch_size=16"
    (expected,) = eight_ranks.run(two_steps, (batch,), world_size=1)
    overrides = (
        *layout(8, 2),
        *composed(schedule, "hsdp"),
        f"dispatcher.name={dispatcher}",
        "parallel.dp_replicate=2",
        f"train.recompute={recompute}",
        batch,
    )
    assert_same(eight_ranks.run(two_steps, overrides, world_size=8, timeout=200), expected)


@pytest.mark.parametrize(
    "overrides",
    [
        ("schedule.name=1f1b", "parallel.layers_per_stage=[1,2,1,1]"),
        ("schedule.name=gpipe", "train.micro_batch_size=4"),
    ],
)
def test_four_ranks_in_a_row_and_a_split_of_ones_own(
    ranks: RankPool, oracle: Numbers, overrides: tuple[str, ...]
) -> None:
    assert_same(ranks.run(two_steps, (*layout(4, 1, pp=4), *overrides), world_size=4), oracle)


DATA = {
    "forced experts": ("data.options.routing=skewed",),
    "no MTP module": ("model.num_nextn_predict_layers=0",),
    "two MTP modules": ("model.num_nextn_predict_layers=2",),
}


@pytest.mark.parametrize(
    ("schedule", "what"),
    swept(
        *itertools.product(["1f1b", "zbv"], DATA),
        default=(("zbv", "forced experts"), ("1f1b", "no MTP module"), ("zbv", "two MTP modules")),
    ),
)
def test_what_a_micro_batch_brings_reaches_every_stage(ranks: RankPool, what: str, schedule: str) -> None:
    (expected,) = ranks.run(two_steps, DATA[what], world_size=1)
    overrides = (*layout(4, 2), *composed(schedule, "fsdp2"), *DATA[what])
    assert_same(ranks.run(two_steps, overrides, world_size=4), expected)


def test_documents_are_kept_apart_in_every_stage(ranks: RankPool, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    lines = [f'{{"text": "{"abcdefghijklm"[: 3 + number % 10]} {number}"}}' for number in range(200)]
    text.write_text("\n".join(lines), encoding="utf-8")
    data = (
        "data.name=text",
        f"data.options.files=[{text}]",
        "data.options.mask_documents=true",
        "data.options.validation_every=4",
        f"data.options.cache_dir={tmp_path}",
    )
    (expected,) = ranks.run(two_steps, data, world_size=1)
    for schedule in ("interleaved_1f1b", "dualpipev"):
        overrides = (*layout(4, 2), *composed(schedule, "replicate"), *data)
        assert_same(ranks.run(two_steps, overrides, world_size=4), expected)


def split_backward_over_freed_parameters(overrides: tuple[str, ...]) -> Numbers:
    """Run what `check` refuses."""
    rules = tuple(rule for rule in fit.FIT_RULES if rule is not fit._split_backward)
    assert len(rules) == len(fit.FIT_RULES) - 1
    with patch("moeframe.config.compose.FIT_RULES", rules):
        return two_steps(overrides)


@pytest.mark.parametrize("schedule", SPLIT)
def test_a_split_backward_needs_whole_parameters_else_torch_returns_wrong_gradients(
    ranks: RankPool, oracle: Numbers, schedule: str
) -> None:
    """Seen with torch 2.11 and 2.13. When this fails, torch can do it and the refusal may go."""
    freed = (*layout(4, 2), f"schedule.name={schedule}", *SCHEDULES[schedule], "sharding.name=fsdp2")
    with pytest.raises(RecipeError, match=r"'fsdp2' frees gathered parameters .* computes weight gradients later"):
        two_steps(freed)
    found = ranks.run(split_backward_over_freed_parameters, freed, world_size=4)
    errors = {
        name: ((tensor - oracle.gradients[name]).norm() / oracle.gradients[name].norm()).item()
        for numbers in found
        for name, tensor in numbers.gradients.items()
        if name.startswith("step 0")
    }
    assert max(errors.values()) > 0.1, f"torch {torch.__version__}: {max(errors.values())}"


def save_after_one_step(path: Path, overrides: tuple[str, ...]) -> tuple[bool, list[str]]:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        train(job, Trainer(job, progress=False), range(1))
        checkpoints = Checkpoints(path, job, keep=1)
        checkpoints.save(1)
        checkpoints.wait()
        return isinstance(job.model, StagedModel), list(job.sharded.state_dict())


def resume_for_one_step(path: Path, overrides: tuple[str, ...]) -> Numbers:
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        Checkpoints(path, job, keep=1).load(1)
        return train(job, trainer, range(1, 2))


ONE = ("launch.nproc_per_node=1",)
TWO = (*layout(4, 2), *composed("zbv", "fsdp2"))
LOOP = (*layout(2, 1), *composed("interleaved_1f1b", "replicate"))


@pytest.mark.parametrize(
    ("before", "after"),
    [pytest.param(TWO, ONE, marks=pytest.mark.sweep), pytest.param(ONE, TWO, marks=pytest.mark.sweep), (LOOP, TWO)],
    ids=["v to one", "one to v", "loop to v"],
)
def test_a_checkpoint_of_one_pipeline_goes_on_in_another(
    ranks: RankPool, oracle: Numbers, tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    worlds = {ONE: 1, TWO: 4, LOOP: 2}
    saved = ranks.run(save_after_one_step, tmp_path, before, world_size=worlds[before])
    assert all(staged is (before != ONE) for staged, _ in saved)
    names = set(itertools.chain(*(names for _, names in saved)))
    assert names == oracle.parameters.keys() | oracle.biases.keys()
    found = ranks.run(resume_for_one_step, tmp_path, after, world_size=worlds[after])
    half = len(oracle.losses) // 2
    second = Numbers(
        losses=oracle.losses[half:],
        norms=oracle.norms[1:],
        loads=oracle.loads[1:],
        gradients={name: tensor for name, tensor in oracle.gradients.items() if name.startswith("step 1")},
        parameters=oracle.parameters,
        biases=oracle.biases,
    )
    assert_same(found, second)
