"""The ledger of collectives: mistakes that torch lets pass are errors on every rank; clean runs raise none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from moeframe import trace
from moeframe.config.load import load_recipe
from moeframe.debug.ledger import ledger
from moeframe.errors import ContractError, JobFailedError
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Trainer

RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"


def error_of(function, limit_s: float = 30.0) -> tuple[str, str]:
    """Return type and text of what a function raises under the ledger on this rank."""
    try:
        with ledger(limit_s) as entries:
            function(dist.get_rank(), entries)
    except (ContractError, JobFailedError) as error:
        return type(error).__name__, str(error)
    return "", ""


def disagreeing_splits(rank, _) -> None:
    received = torch.full((5,), -1.0)
    with trace.at(step=3), trace.span(layer=2, phase="dispatch"):
        splits = ([1, 2], [1, 2]) if rank == 0 else ([3, 2], [2, 2])
        sent = torch.ones(sum(splits[1]))
        dist.all_to_all_single(received[: sum(splits[0])], sent, *splits)


def swapped(rank, _) -> None:
    a, b = torch.ones(1), torch.ones(1)
    if rank == 0:
        dist.all_reduce(a)
        dist.all_reduce(b)
    else:
        dist.all_reduce(b)
        dist.all_reduce(a)


def mixed_dtypes(rank, _) -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.float32 if rank == 0 else torch.int32))


def mixed_shapes(rank, _) -> None:
    dist.all_reduce(torch.ones(2 + rank))


def different_units(rank, entries) -> None:
    """Each expert is a sharding unit of its own, and a rank runs only the one that its tokens need."""
    model = nn.ModuleDict({"experts": nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(2))})
    entries.know(model)
    for expert in model["experts"]:
        fully_shard(expert, mesh=init_device_mesh("cpu", (2,)))
    model["experts"][rank](torch.full((1, 1), rank + 1.0)).sum().backward()


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(grad := grad.expand(1 + ctx.rank).contiguous())
        return grad[:1], None


def different_backwards(rank, _) -> None:
    _Reduced.apply(torch.ones(1, requires_grad=True), rank).sum().backward()


def different_messages(rank, _) -> None:
    if rank == 0:
        dist.send(torch.ones(2), dst=1)
    else:
        time.sleep(0.2)
        dist.recv(torch.ones(2, dtype=torch.float64), src=0)


def together(rank, _) -> None:
    dist.all_reduce(torch.ones(1))


def missing(rank, _) -> None:
    dist.all_reduce(torch.ones(1))
    if rank != 1:
        dist.all_reduce(torch.ones(1))


def run_both(ranks, function) -> tuple[str, str]:
    """Run on two ranks; return the error that is the same on both."""
    errors = ranks.run(error_of, function, world_size=2)
    assert errors[0][0]
    assert errors[0] == errors[1]
    return errors[0]


def test_disagreeing_splits_are_an_error_before_data_moves_c04(ranks) -> None:
    kind, text = run_both(ranks, disagreeing_splits)
    assert kind == "ContractError"
    assert "rank 0 sends 2 rows to rank 1, rank 1 expects 3" in text
    assert "step 3, layer 2, dispatch (forward)" in text


def test_swapped_collectives_of_one_shape_name_both_call_sites_c60(ranks) -> None:
    _, text = run_both(ranks, swapped)
    assert "different call sites" in text
    lines = [line for line in text.splitlines() if "in swapped" in line]
    assert len(lines) == 2
    assert lines[0].split("test_ledger.py:")[1][:4] != lines[1].split("test_ledger.py:")[1][:4]


def test_mixed_dtypes_are_an_error_c61(ranks) -> None:
    _, text = run_both(ranks, mixed_dtypes)
    assert "rank 0: all_reduce float32 [2]" in text
    assert "rank 1: all_reduce int32 [2]" in text


def test_mixed_shapes_are_an_error_c62(ranks) -> None:
    _, text = run_both(ranks, mixed_shapes)
    assert "different dtypes or numbers of elements" in text
    assert "[3]" in text


def test_ranks_that_run_different_units_are_told_so_c34(ranks) -> None:
    _, text = run_both(ranks, different_units)
    assert "different modules" in text
    assert "module experts.0" in text
    assert "module experts.1" in text


def test_collectives_of_a_backward_are_compared(ranks) -> None:
    _, text = run_both(ranks, different_backwards)
    assert "in backward" in text


def test_messages_are_compared_by_the_rank_that_comes_second(ranks) -> None:
    _, text = run_both(ranks, different_messages)
    assert "rank 0: send float32 [2]" in text
    assert "rank 1: recv float64 [2]" in text


def test_a_rank_that_never_comes_is_named(ranks) -> None:
    # What a process does for the first time takes long on a busy machine.
    assert ranks.run(error_of, together, world_size=3) == [("", "")] * 3
    errors = ranks.run(error_of, missing, 5.0, world_size=3)
    assert errors[1] == ("", ""), errors[1][1]
    for kind, text in (errors[0], errors[2]):
        assert kind == "JobFailedError"
        assert "not all ranks came within 5 s" in text
        assert "rank 1: last entered all_reduce float32 [1]" in text
        assert "rank 2:" not in text


SMALL = (
    "train.steps=3",
    "train.seq_len=8",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "train.eval_every=3",
    "train.eval_sequences=4",
    "model.hidden_size=16",
    "model.intermediate_size=16",
    "model.moe_intermediate_size=16",
    "model.num_hidden_layers=2",
    "model.q_lora_rank=8",
    "model.kv_lora_rank=8",
    "data.name=synthetic",
    "launch.device=cpu",
)


def three_steps(overrides: tuple[str, ...]) -> SimpleNamespace:
    """Return numbers of three steps without and with the ledger, and what it holds."""
    found = SimpleNamespace(metrics=[], parameters=[], entries=[])
    for debug in ("false", "true"):
        recipe = load_recipe(RECIPE, [*SMALL, *overrides, f"debug.ledger={debug}"])
        with assemble(recipe) as job:
            trainer = Trainer(job, progress=False)
            metrics = [trainer.step(step) for step in range(3)]
            found.metrics.append([(one["loss"], one["grad_norm"]) for one in metrics])
            found.metrics[-1].append(trainer.evaluate())
            found.parameters.append(job.sharded.full_parameters())
            if job.ledger is not None:
                found.entries = list(job.ledger.entries)
    return found


LAYOUTS = [
    (2, 2, "alltoall", "fsdp2", ()),
    (2, 2, "allgather", "zero1", ("train.recompute=full",)),
    (2, 1, "local", "replicate", ()),
    (4, 2, "allgather", "hsdp", ("parallel.dp_replicate=2",)),
    (4, 2, "alltoall", "replicate", ("parallel.pp=2", "schedule.name=1f1b")),
    (
        4,
        2,
        "alltoall",
        "fsdp2",
        (
            "parallel.pp=2",
            "schedule.name=zbv",
            "model.num_hidden_layers=4",
            "sharding.options.reshard_after_forward=false",
            "train.recompute=selective",
        ),
    ),
]


@pytest.mark.parametrize(("world", "ep", "dispatcher", "sharding", "more"), LAYOUTS)
def test_a_clean_run_raises_no_alarm_and_changes_no_bit(ranks, world, ep, dispatcher, sharding, more) -> None:
    overrides = (
        f"launch.nproc_per_node={world}",
        f"parallel.ep={ep}",
        f"sharding.name={sharding}",
        f"dispatcher.name={dispatcher}",
        *more,
    )
    places = set()
    for found in ranks.run(three_steps, overrides, world_size=world, timeout=200):
        assert found.metrics[0] == found.metrics[1]
        assert all(torch.equal(value, found.parameters[1][name]) for name, value in found.parameters[0].items())
        assert len(found.entries) > 10
        assert all(entry.site.line for entry in found.entries)
        places |= {entry.site.place.rpartition(", ")[2] for entry in found.entries}
    if ep > 1:
        assert {"dispatch (forward)", "dispatch (backward)"} <= places


def write_and_read(folder: str) -> list[dict]:
    with ledger(30) as entries:
        dist.all_reduce(torch.ones(3))
        dist.barrier()
        file = Path(folder) / "ledger" / f"rank-{dist.get_rank()}.jsonl"
        entries.write(file)
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_entries_can_be_written_to_a_file(ranks, tmp_path) -> None:
    for rank, lines in enumerate(ranks.run(write_and_read, str(tmp_path), world_size=2)):
        assert [line["op"] for line in lines] == ["all_reduce", "barrier"]
        assert [line["sequence"] for line in lines] == [1, 2]
        assert {line["rank"] for line in lines} == {rank}
        assert lines[0]["operands"] == ["float32 x 3"]
        assert "test_ledger.py" in lines[0]["site"]["line"]
