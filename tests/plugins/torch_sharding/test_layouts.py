"""Both strategies give the numbers of one process, in every layout."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
import torch
from moeframe_torch_sharding.plugin import moeframe_offer_shardings
from torch import distributed as dist
from torch import nn

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import AdamWSettings, ModelPlan, Parameter, Unit
from moeframe.testing.ranks import RankPool

VOCABULARY, WIDTH, EXPERTS, TOKENS, MICRO_BATCHES = 7, 6, 4, 8, 2
LAYOUTS = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]
SETTINGS = AdamWSettings(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


class Gather(torch.autograd.Function):
    """Concatenate over a group; the gradient of a rank's part is the sum of what all ranks did with it."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(x_TD) for _ in range(group.size())]
        dist.all_gather(parts, x_TD.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[ctx.group.rank()], None


class SumAndSplit(torch.autograd.Function):
    """Sum over a group and keep this rank's part: the transpose of `Gather`."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        x_TD = x_TD.contiguous().clone()
        dist.all_reduce(x_TD, group=group)
        return x_TD.chunk(group.size())[group.rank()].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = [torch.empty_like(grad) for _ in range(ctx.group.size())]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts), None


class Cast(nn.Module):
    """A linear without bias that casts its weight, as compute modules do."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD @ self.weight.to(x_TD.dtype).T


class Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH))

    def forward(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self.weight[ids_T].to(dtype)


class Router(Cast):
    def __init__(self) -> None:
        super().__init__(EXPERTS, WIDTH)
        self.register_buffer("bias", torch.empty(EXPERTS))

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        high = torch.promote_types(x_TD.dtype, torch.float32)
        assert self.weight.dtype == high, "the router computes in at least float32"
        return (super().forward(x_TD.to(high)) + self.bias).softmax(-1)


class Attend(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = Cast(WIDTH, WIDTH)
        self.router = Router()

    def forward(self, x_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_TD = x_TD + self.project(x_TD).tanh()
        return x_TD, self.router(x_TD)


class Routed(nn.Module):
    """Local experts stacked; every token goes to every expert, weighted by its gate."""

    def __init__(self, local: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(local, WIDTH, WIDTH))

    def forward(self, x_RD: torch.Tensor, gates_RE: torch.Tensor) -> torch.Tensor:
        out_ERD = torch.einsum("rd,edf->erf", x_RD, self.weight.to(x_RD.dtype)).tanh()
        return torch.einsum("erf,re->rf", out_ERD, gates_RE.to(out_ERD.dtype))


class Experts(nn.Module):
    def __init__(self, local: int) -> None:
        super().__init__()
        self.routed = Routed(local)
        self.shared = Cast(WIDTH, WIDTH)

    def forward(
        self, x_TD: torch.Tensor, rows_RD: torch.Tensor, gates_RE: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.routed(rows_RD, gates_RE), self.shared(x_TD)


class Block(nn.Module):
    def __init__(self, meshes: Any, local: int) -> None:
        super().__init__()
        self.meshes = meshes
        self.attend = Attend()
        self.experts = Experts(local)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        x_TD, gates_TE = self.attend(x_TD)
        group = self.meshes.group("ep")
        rows_RD = x_TD if group is None else Gather.apply(x_TD, group)
        gates_RE = gates_TE if group is None else Gather.apply(gates_TE, group)
        mine = gates_RE.chunk(self.meshes.size("ep"), dim=1)[self.meshes.rank("ep")]
        routed_RD, shared_TD = self.experts(x_TD, rows_RD, mine)
        return x_TD + shared_TD + (routed_RD if group is None else SumAndSplit.apply(routed_RD, group))


class Toy(nn.Module):
    """Embedding, two blocks of phases, head; a parameter that no batch uses."""

    def __init__(self, meshes: Any) -> None:
        super().__init__()
        local = EXPERTS // meshes.size("ep")
        self.embedding = Embedding()
        self.blocks = nn.ModuleList([Block(meshes, local) for _ in range(2)])
        self.head = Cast(VOCABULARY, WIDTH)
        self.unused = nn.Parameter(torch.empty(3))

    def forward(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x_TD = self.embedding(ids_T, dtype)
        for block in self.blocks:
            x_TD = block(x_TD)
        return self.head(x_TD)

    def by_phases(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Do the same as `forward`; a plain method, so no sharded root sees the call."""
        return Toy.forward.__get__(self)(ids_T, dtype)


def plan_of(model: Toy, meshes: Any, dtype: torch.dtype) -> ModelPlan:
    names = ["embedding"]
    for index in range(2):
        at = f"blocks.{index}"
        names += [f"{at}.attend.router", f"{at}.attend", f"{at}.experts.routed", f"{at}.experts"]
    names += ["head", ""]
    owned: dict[str, list[str]] = {name: [] for name in names}
    parameters = {}
    for name, parameter in model.named_parameters():
        owned[max((unit for unit in names if name.startswith(unit)), key=len)].append(name)
        role: Any = "expert" if "routed" in name else "router" if "router" in name else "dense"
        shape = (EXPERTS, *parameter.shape[1:]) if role == "expert" else tuple(parameter.shape)
        parameters[name] = Parameter(name=name, role=role, global_shape=shape)
    units = tuple(
        Unit(
            name=name,
            parameters=tuple(owned[name]),
            roles=frozenset(parameters[parameter].role for parameter in owned[name]),
            high_precision="router" in name,
        )
        for name in names
    )

    def fill(name: str, global_shape: tuple[int, ...], *, expert: bool) -> torch.Tensor:
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(global_shape, dtype=torch.float64, generator=generator).to(dtype)
        return values.chunk(meshes.size("ep"))[meshes.rank("ep")].clone() if expert else values

    def materialize(unit: str, device: torch.device) -> None:
        for name in owned[unit]:
            path, _, leaf = name.rpartition(".")
            filled = fill(name, parameters[name].global_shape, expert=parameters[name].role == "expert")
            setattr(model.get_submodule(path), leaf, nn.Parameter(filled.to(device)))
        if unit.endswith("router"):
            model.get_submodule(unit).bias = fill(f"{unit}.bias", (EXPERTS,), expert=False).to(device)

    return ModelPlan(units=units, parameters=parameters, materialize=materialize)


@dataclass(frozen=True)
class Outcome:
    """One rank's results; expert tensors are global."""

    loss: float
    norm: float
    gradients: dict[str, np.ndarray]
    clipped: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]


def train(
    name: str,
    options: dict[str, Any],
    ep: int,
    precision_name: Literal["float64", "float32", "bfloat16"] = "float64",
    by_phases: bool = False,
    device_name: str = "cpu",
    dp_replicate: int = 1,
) -> Outcome:
    """One step of two micro-batches on this rank's share of the tokens."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    device = torch.device(device_name)
    meshes = build_meshes(Degrees(world=world, pp=1, dp_replicate=dp_replicate, ep=ep), device)
    precision = Precision.of(precision_name)
    with torch.device("meta"):
        model = Toy(meshes)
    offer = next(offer for offer in moeframe_offer_shardings() if offer.name == name)
    plan = plan_of(model, meshes, precision.dtype("parameters"))
    sharded = offer.build(offer.options(**options)).shard(model, plan, meshes, precision)
    optimizer = sharded.optimizer(SETTINGS)
    ids = torch.arange(MICRO_BATCHES * TOKENS, device=device).mul(3).remainder(VOCABULARY).view(MICRO_BATCHES, TOKENS)
    loss = torch.zeros((), dtype=torch.float64, device=device)
    for ids_T in ids:
        mine_T = ids_T.chunk(world)[meshes.rank("dp")]
        run = sharded.module.by_phases if by_phases else sharded.module
        logits_TV = run(mine_T, precision.dtype("compute")).to(precision.dtype("high"))
        part = nn.functional.cross_entropy(logits_TV, (mine_T + 1) % VOCABULARY, reduction="sum") / ids.numel()
        part.backward()
        loss += part.detach()
    if world > 1:
        dist.all_reduce(loss)
    sharded.finish_gradients()
    assert all(parameter.grad is not None for parameter in sharded.parameters.values())

    def whole(found: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        group = meshes.group("ep")
        return {
            key: (value if group is None or plan.role(key) != "expert" else Gather.apply(value, group)).cpu().numpy()
            for key, value in found.items()
        }

    gradients = whole(sharded.full_gradients())
    norm = sharded.clip_(0.5)
    clipped = whole(sharded.full_gradients())
    optimizer.step()
    optimizer.zero_grad()
    assert all(parameter.grad is None for parameter in sharded.parameters.values())
    return Outcome(float(loss), float(norm), gradients, clipped, whole(sharded.full_parameters()))


def require_same(found: Outcome, oracle: Outcome, rtol: float) -> None:
    assert found.loss == pytest.approx(oracle.loss, rel=rtol)
    assert found.norm == pytest.approx(oracle.norm, rel=rtol)
    for part in ("gradients", "clipped", "parameters"):
        given, wanted = getattr(found, part), getattr(oracle, part)
        assert given.keys() == wanted.keys()
        for key in wanted:
            scale = np.abs(wanted[key]).max()
            assert np.abs(given[key] - wanted[key]).max() <= rtol * scale, (part, key)


@pytest.fixture(scope="module")
def oracle() -> Outcome:
    """One process without a process group."""
    return train("replicate", {}, 1)


def test_the_oracle_clips_and_leaves_unused_parameters_alone(oracle: Outcome) -> None:
    clipped = np.sqrt(sum((gradient**2).sum() for gradient in oracle.clipped.values()))
    assert oracle.norm == pytest.approx(np.sqrt(sum((gradient**2).sum() for gradient in oracle.gradients.values())))
    assert oracle.norm > 0.5
    assert clipped == pytest.approx(0.5)
    assert not oracle.gradients["unused"].any()


def test_one_process_without_a_group_may_ask_for_fsdp2(oracle: Outcome) -> None:
    require_same(train("fsdp2", {}, 1), oracle, 0.0)


@pytest.mark.parametrize(("world", "ep"), LAYOUTS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("replicate", {}),
        ("replicate", {"bucket_bytes": 200}),
        ("fsdp2", {}),
        ("fsdp2", {"reshard_after_forward": False, "reshard_experts_after_forward": True}),
    ],
    ids=["replicate", "small_buckets", "fsdp2", "dense_stay_whole"],
)
def test_loss_gradients_norm_and_step_equal_one_process(
    ranks: RankPool, oracle: Outcome, name: str, options: dict[str, Any], world: int, ep: int
) -> None:
    for found in ranks.run(train, name, options, ep, world_size=world):
        require_same(found, oracle, 1e-9)


def test_replicas_of_the_data_ranks_change_nothing_for_replicate(ranks: RankPool, oracle: Outcome) -> None:
    for found in ranks.run(train, "replicate", {}, 2, "float64", False, "cpu", 2, world_size=4):
        require_same(found, oracle, 1e-9)


@pytest.mark.parametrize("name", ["replicate", "fsdp2"])
def test_a_schedule_may_call_phases_without_the_root(ranks: RankPool, oracle: Outcome, name: str) -> None:
    for found in ranks.run(train, name, {}, 2, "float64", True, world_size=4):
        require_same(found, oracle, 1e-9)


@pytest.mark.parametrize("name", ["replicate", "fsdp2"])
def test_float32_and_bfloat16_stay_near_the_exact_numbers(ranks: RankPool, oracle: Outcome, name: str) -> None:
    """The step itself is left out: the first AdamW step depends on the sign of a gradient only."""
    for precision, rtol in (("float32", 1e-4), ("bfloat16", 0.1)):
        for found in ranks.run(train, name, {}, 2, precision, world_size=4):
            assert all(value.dtype == np.float32 for value in found.parameters.values())
            assert found.loss == pytest.approx(oracle.loss, rel=rtol)
            assert found.norm == pytest.approx(oracle.norm, rel=rtol)
            for key, wanted in oracle.gradients.items():
                assert np.abs(found.gradients[key] - wanted).max() <= rtol * np.abs(oracle.gradients[key]).max()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", ["replicate", "fsdp2"])
def test_nccl_gives_the_numbers_of_one_process(oracle: Outcome, name: str) -> None:
    count = torch.cuda.device_count()
    with RankPool(min(count, 4), device="cuda") as pool:
        for world, ep in [layout for layout in LAYOUTS if layout[0] <= count]:
            for found in pool.run(train, name, {}, ep, "float64", False, "cuda", world_size=world):
                require_same(found, oracle, 1e-9)
