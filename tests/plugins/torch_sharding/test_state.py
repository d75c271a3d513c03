"""State in global shape: saved in one layout, loaded in another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from moeframe_torch_sharding.plugin import moeframe_offer_shardings
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.tensor import DTensor, distribute_tensor

from moeframe.errors import ContractError
from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, ModelPlan, Parameter, ShardedModel, Unit
from moeframe.testing.ranks import RankError, RankPool

SETTINGS = AdamWSettings(lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)


class Holder(nn.Module):
    """Stacked experts [E_local, 3, 2] in a unit of their own, a dense weight, and buffers."""

    def __init__(self, local: int) -> None:
        super().__init__()
        self.routed = nn.Module()
        self.routed.weight = nn.Parameter(torch.empty(local, 3, 2))
        self.dense = nn.Parameter(torch.empty(5, 2))
        self.register_buffer("bias", torch.empty(2))
        self.register_buffer("scratch", torch.empty(2), persistent=False)


def shard(name: str, ep: int, num_experts: int, offset: float) -> ShardedModel:
    """Lay out a model in which expert e is filled with e + offset, the dense weight counts, the bias is offset."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    dp_replicate = 2 if name == "hsdp" and world // ep > 1 else 1
    meshes = build_meshes(Degrees(world=world, pp=1, dp_replicate=dp_replicate, ep=ep), torch.device("cpu"))
    local = num_experts // ep
    with torch.device("meta"):
        model = Holder(local)
    parameters = {
        "routed.weight": Parameter(name="routed.weight", role="expert", global_shape=(num_experts, 3, 2)),
        "dense": Parameter(name="dense", role="dense", global_shape=(5, 2)),
    }
    units = (
        Unit(name="routed", parameters=("routed.weight",), roles=frozenset({"expert"})),
        Unit(name="", parameters=("dense",), roles=frozenset({"dense"})),
    )

    def materialize(unit: str, device: torch.device) -> None:
        if unit:
            ids = torch.arange(local, device=device) + meshes.rank("ep") * local
            model.routed.weight = nn.Parameter((ids + offset).view(-1, 1, 1).expand(local, 3, 2).contiguous())
        else:
            model.dense = nn.Parameter(torch.arange(10.0, device=device).view(5, 2) + offset)
            model.bias = torch.full((2,), offset, device=device)
            model.scratch = torch.zeros(2, device=device)

    offer = next(offer for offer in moeframe_offer_shardings() if offer.name == name)
    plan = ModelPlan(units=units, parameters=parameters, materialize=materialize)
    sharded = offer.build(offer.options()).shard(model, plan, meshes, Precision.of("float32"))
    assert isinstance(sharded, ShardedModel)
    return sharded


def global_ids(sharded: ShardedModel, ep: int, num_experts: int) -> torch.Tensor:
    rank = (dist.get_rank() if dist.is_initialized() else 0) % ep
    return torch.arange(num_experts).chunk(ep)[rank].view(-1, 1, 1).expand(-1, 3, 2).float()


def state_of(sharded: ShardedModel, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": sharded.state_dict(), "optimizer": sharded.optimizer_state_dict(optimizer)}


def save(name: str, ep: int, num_experts: int, folder: Path) -> dict[str, tuple[int, ...]]:
    """Save experts w_e = e, Adam's first moment 10 + e; return the shapes in the state."""
    sharded = shard(name, ep, num_experts, 0.0)
    optimizer = sharded.optimizer(SETTINGS)
    state = state_of(sharded, optimizer)
    for key, moments in state["optimizer"].items():
        moments["step"].fill_(7.0)
        value, moment = state["model"][key] + 10.0, moments["exp_avg"]
        if isinstance(moment, DTensor):  # zero1 holds parameters whole
            value = value.full_tensor() if isinstance(value, DTensor) else value
            value = distribute_tensor(value, moment.device_mesh, moment.placements)
        moment.copy_(value)
    if dist.is_initialized():
        checkpoint.save(state, checkpoint_id=folder)
    else:
        checkpoint.save(state, checkpoint_id=folder, no_dist=True)
    assert all(isinstance(state["model"][key], DTensor) == dist.is_initialized() for key in ("routed.weight",))
    return {key: tuple(value.shape) for key, value in state["model"].items()}


def load(name: str, ep: int, num_experts: int, folder: Path) -> bool:
    """Load into a model with other values; every rank must hold its experts by global id, moments included."""
    sharded = shard(name, ep, num_experts, 100.0)
    optimizer = sharded.optimizer(SETTINGS)
    state = state_of(sharded, optimizer)
    checkpoint.load(state, checkpoint_id=folder)
    sharded.load_state_dict(state["model"])
    sharded.load_optimizer_state_dict(optimizer, state["optimizer"])
    ids = global_ids(sharded, ep, num_experts)
    parameters = sharded.full_parameters()
    assert torch.equal(parameters["routed.weight"], ids)
    assert torch.equal(parameters["dense"], torch.arange(10.0).view(5, 2))
    assert sharded.module.get_buffer("bias").tolist() == [0.0, 0.0]
    moments = sharded.optimizer_state_dict(optimizer)
    assert {float(held["step"]) for held in moments.values()} == {7.0}
    for key, whole in parameters.items():
        found = moments[key]["exp_avg"]
        found = found.full_tensor() if isinstance(found, DTensor) else found
        if key == "routed.weight":
            assert torch.equal(found, torch.arange(num_experts).view(-1, 1, 1).expand(-1, 3, 2) + 10.0)
        else:
            assert torch.equal(found, whole + 10.0)
    return True


@pytest.mark.parametrize(
    "saved_by",
    [
        pytest.param("replicate", marks=pytest.mark.sweep),
        "zero1",
        "fsdp2",
        pytest.param("hsdp", marks=pytest.mark.sweep),
    ],
)
def test_c41_experts_return_by_global_id_in_every_layout(ranks: RankPool, tmp_path: Path, saved_by: str) -> None:
    shapes = ranks.run(save, saved_by, 2, 4, tmp_path)
    assert shapes == [{"routed.weight": (4, 3, 2), "dense": (5, 2), "bias": (2,)}] * 4
    metadata = checkpoint.FileSystemReader(tmp_path).read_metadata().state_dict_metadata
    assert tuple(metadata["model.routed.weight"].size) == (4, 3, 2)
    assert "optimizer.routed.weight.exp_avg" in metadata
    for name, world, ep in [
        ("replicate", 4, 1),
        ("fsdp2", 4, 1),
        ("fsdp2", 4, 4),
        ("replicate", 2, 2),
        ("fsdp2", 1, 1),
        ("zero1", 4, 1),
        ("zero1", 4, 2),
        ("zero1", 2, 2),
        ("hsdp", 4, 1),
        ("hsdp", 4, 2),
    ]:
        assert all(ranks.run(load, name, ep, 4, tmp_path, world_size=world))


@pytest.mark.parametrize(("num_experts", "ep"), [(3, 1), (6, 2), (2, 2)], ids=str)
def test_uneven_expert_pieces_are_saved_and_loaded(ranks: RankPool, tmp_path: Path, num_experts: int, ep: int) -> None:
    """Over 4 ranks: 3 experts in pieces of 1, 1, 1, 0; stacks of 3 in pieces of 2, 1; stacks of 1 in pieces of 1, 0."""
    ranks.run(save, "fsdp2", ep, num_experts, tmp_path)
    assert all(ranks.run(load, "replicate", 1, num_experts, tmp_path, world_size=2))
    for name in ("fsdp2", "zero1", "hsdp"):
        assert all(ranks.run(load, name, ep, num_experts, tmp_path))


def exchange(from_name: str, to_name: str) -> bool:
    """Load a state straight from a model of another layout, without a checkpoint."""
    source = shard(from_name, 2, 4, 0.0)
    target = shard(to_name, 1, 4, 100.0)
    target.load_state_dict(source.state_dict())
    assert torch.equal(target.full_parameters()["routed.weight"], global_ids(target, 1, 4))
    assert target.full_parameters()["dense"].flatten().tolist() == list(range(10))
    wholes = {"routed.weight": torch.ones(4, 3, 2), "dense": torch.ones(5, 2), "bias": torch.ones(2)}
    target.load_state_dict(wholes)
    assert all(bool((parameter == 1).all()) for parameter in target.full_parameters().values())
    return True


@pytest.mark.parametrize(
    ("from_name", "to_name"),
    [
        ("replicate", "fsdp2"),
        ("fsdp2", "replicate"),
        ("fsdp2", "fsdp2"),
        ("zero1", "hsdp"),
        ("hsdp", "zero1"),
        ("hsdp", "fsdp2"),
    ],
)
def test_a_state_loads_from_another_layout_or_whole(ranks: RankPool, from_name: str, to_name: str) -> None:
    assert all(ranks.run(exchange, from_name, to_name))


def test_one_process_without_a_group_holds_plain_tensors() -> None:
    sharded = shard("replicate", 1, 4, 0.0)
    state = sharded.state_dict()
    assert {key: type(value) for key, value in state.items()} == dict.fromkeys(state, torch.Tensor)
    state["dense"].fill_(3.0)
    assert bool((sharded.full_parameters()["dense"] == 3.0).all()), "the state shares storage with the model"


def test_a_state_that_does_not_fit_is_refused() -> None:
    sharded = shard("replicate", 1, 4, 0.0)
    optimizer = sharded.optimizer(SETTINGS)
    state = sharded.state_dict()
    with pytest.raises(ContractError, match=r"Missing: \['bias'\]\. Unknown: \['extra'\]"):
        sharded.load_state_dict({"extra": torch.zeros(1), **{k: v for k, v in state.items() if k != "bias"}})
    with pytest.raises(ContractError, match=r"dense: the state has shape \(2, 2\), .* global shape \(5, 2\)"):
        sharded.load_state_dict({**state, "dense": torch.zeros(2, 2)})
    moments = sharded.optimizer_state_dict(optimizer)
    with pytest.raises(ContractError, match=r"dense: .*Missing: \['step'\]"):
        sharded.load_optimizer_state_dict(
            optimizer, {**moments, "dense": {k: v for k, v in moments["dense"].items() if k != "step"}}
        )
    with pytest.raises(ContractError, match="SGD was given"):
        sharded.optimizer_state_dict(torch.optim.SGD(sharded.module.parameters(), lr=0.1))


def wrong_global_shape() -> None:
    meshes = build_meshes(Degrees(world=2, pp=1, dp_replicate=1, ep=2), torch.device("cpu"))
    model = nn.Linear(2, 3, bias=False)
    plan = ModelPlan(
        units=(Unit(name="", parameters=("weight",), roles=frozenset({"expert"})),),
        parameters={"weight": Parameter(name="weight", role="expert", global_shape=(3, 2))},
        materialize=lambda _unit, _device: None,
    )
    offer = next(offer for offer in moeframe_offer_shardings() if offer.name == "replicate")
    offer.build(offer.options()).shard(model, plan, meshes, Precision.of("float32"))


def test_c41_local_numbers_of_experts_are_refused(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"weight: the plan says the global shape is \(3, 2\).* on each of 2 ranks"):
        ranks.run(wrong_global_shape, world_size=2)
