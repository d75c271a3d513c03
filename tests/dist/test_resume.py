"""A resumed job gives the bits of an uninterrupted one, over the end of an epoch too (C42), and in another layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from moeframe.config.load import load_recipe
from moeframe.train.assemble import assemble
from moeframe.train.run_directory import RunDirectory
from moeframe.train.saved import complete_steps

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"
# 6 sequences in an epoch, 4 a step: epochs end in the middle of steps 2, 5 and at the end of step 6.
SMALL = (
    "train.seq_len=16",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "model.hidden_size=32",
    "model.intermediate_size=32",
    "data.name=synthetic",
    "data.options.num_sequences=6",
    "model.bias_update_speed=0.01",
    "optimizer.lr_schedule.warmup_steps=6",
    "launch.device=cpu",
    "train.loads_every=0",
)
LAYOUTS = {
    "one process": (1, ()),
    "replicate": (2, ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=alltoall")),
    "fsdp2": (2, ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=alltoall", "sharding.name=fsdp2")),
    "edp 2": (4, ("launch.nproc_per_node=4", "parallel.ep=2", "dispatcher.name=allgather", "sharding.name=fsdp2")),
}

Bits = dict[str, torch.Tensor]


def train(overrides: tuple[str, ...], run_dir: Path, resume_step: int) -> Bits:
    """Train to the end of the recipe and return every parameter, buffer and moment, whole."""
    (run_dir / "log").mkdir(parents=True, exist_ok=True)
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        job.train(run_dir, resume_step=resume_step, progress=False)
        bits = {f"parameter {name}": value for name, value in job.sharded.full_parameters().items()}
        bits |= {f"buffer {name}": value.clone() for name, value in job.model.named_buffers()}
        for name, moments in job.sharded.optimizer_state_dict(job.optimizer).items():
            for key, value in moments.items():
                bits[f"{key} of {name}"] = getattr(value, "to_local", lambda value=value: value)().clone()
        return bits


def losses(run_dir: Path) -> list[tuple[float, float, float]]:
    lines = map(json.loads, RunDirectory(run_dir).metrics_file.read_text().splitlines())
    return [(line["loss"], line["grad_norm"], line["lr"]) for line in lines]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_c42_resuming_gives_equal_bits(ranks, tmp_path: Path, layout: str) -> None:
    world, overrides = LAYOUTS[layout]
    whole = ranks.run(train, (*overrides, "train.steps=8"), tmp_path / "whole", 0, world_size=world)
    first = (*overrides, "train.steps=5", "checkpoint.every=2", "checkpoint.keep=3")
    ranks.run(train, first, tmp_path / "cut", 0, world_size=world)
    assert complete_steps(tmp_path / "cut" / "checkpoints") == [2, 4, 5]
    resumed = ranks.run(train, (*overrides, "train.steps=8"), tmp_path / "cut", 4, world_size=world)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    for rank in range(world):
        assert resumed[rank].keys() == whole[rank].keys()
        assert [name for name, value in whole[rank].items() if not torch.equal(resumed[rank][name], value)] == []
    assert any("bias" in name and bool(value.abs().sum()) for name, value in whole[0].items())


def test_another_layout_goes_on_from_the_same_weights(ranks, tmp_path: Path) -> None:
    exact = ("train.precision=float64",)
    ranks.run(train, (*exact, "train.steps=6"), tmp_path / "whole", 0, world_size=1)
    world, overrides = LAYOUTS["edp 2"]
    ranks.run(train, (*exact, *overrides, "train.steps=2"), tmp_path / "cut", 0, world_size=world)
    for steps, layout in ((4, "replicate"), (6, "one process")):
        world, overrides = LAYOUTS[layout]
        ranks.run(train, (*exact, *overrides, f"train.steps={steps}"), tmp_path / "cut", steps - 2, world_size=world)
    for mine, theirs in zip(losses(tmp_path / "cut"), losses(tmp_path / "whole"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-9)


def test_old_checkpoints_go_once_newer_ones_are_whole(ranks, tmp_path: Path) -> None:
    overrides = ("train.steps=5", "checkpoint.every=1", "checkpoint.keep=2")
    ranks.run(train, overrides, tmp_path, 0, world_size=1)
    assert complete_steps(tmp_path / "checkpoints") == [4, 5]
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-4", "step-5"}


def full_disk(overrides: tuple[str, ...], run_dir: Path) -> str:
    import torch.distributed as dist
    from torch.distributed.checkpoint import filesystem

    from moeframe.errors import JobFailedError

    write = filesystem.FileSystemWriter.write_data

    def no_space(*args, **kwargs):
        if "step-2" in str(args[0].path):
            raise OSError(28, "No space left on device")
        return write(*args, **kwargs)

    if dist.get_rank() == 1:
        filesystem.FileSystemWriter.write_data = no_space
    try:
        train(overrides, run_dir, 0)
    except JobFailedError as error:
        return str(error)
    finally:
        filesystem.FileSystemWriter.write_data = write
    return "no error"


def test_a_full_disk_on_one_rank_ends_all_and_keeps_the_checkpoint_before(ranks, tmp_path: Path) -> None:
    world, overrides = LAYOUTS["fsdp2"]
    settings = (*overrides, "train.steps=50", "checkpoint.every=1")
    for message in ranks.run(full_disk, settings, tmp_path, world_size=world):
        assert "checkpoint of step 2" in message
        assert "rank 1: OSError: [Errno 28] No space left on device" in message
    assert complete_steps(tmp_path / "checkpoints") == [1]
    assert not (tmp_path / "checkpoints" / "step-2").exists()


def test_nothing_of_ours_is_a_pickle(ranks, tmp_path: Path) -> None:
    ranks.run(train, ("train.steps=1",), tmp_path, 0, world_size=1)
    own = {path for path in tmp_path.rglob("*") if path.is_file()}
    torchs = {path for path in own if path.name == ".metadata" or path.suffix == ".distcp"}
    assert {path.name for path in torchs} == {".metadata", "__0_0.distcp"}
    assert b"omegaconf" not in b"".join(path.read_bytes() for path in own)
    for path in own - torchs:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            json.loads(text)
