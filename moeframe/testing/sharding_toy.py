"""A small mixture-of-experts model with a plan, for sharding strategies to lay out.

Its dimensions are odd on purpose: they divide by no number of ranks that is tested.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from moeframe.protocols.sharding import ModelPlan, Parameter, Role, Unit

__all__ = ["VOCABULARY", "Placement", "StagedToy", "Toy", "initial_values", "plan_of"]

VOCABULARY = 7
WIDTH = 6
EXPERT_WIDTH = 5
BLOCKS = 2


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Which experts a rank holds, and the group whose ranks hold the others; None for one rank."""

    num_experts: int
    ep_size: int = 1
    ep_rank: int = 0
    ep_group: ProcessGroup | None = None

    @property
    def num_local(self) -> int:
        """Number of experts on this rank."""
        return self.num_experts // self.ep_size


class _Gather(torch.autograd.Function):
    """Concatenate over a group; the gradient of a rank's part is the sum of what all ranks did with it."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(x_TD) for _ in range(group.size())]
        dist.all_gather(parts, x_TD.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(ctx.group.size())[ctx.group.rank()], None


class _SumAndSplit(torch.autograd.Function):
    """Sum over a group and keep this rank's part: the transpose of `_Gather`."""

    @staticmethod
    def forward(ctx: Any, x_TD: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
        ctx.group = group
        x_TD = x_TD.contiguous().clone()
        dist.all_reduce(x_TD, group=group)
        return x_TD.chunk(group.size())[group.rank()].clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        parts = [torch.empty_like(grad) for _ in range(ctx.group.size())]
        dist.all_gather(parts, grad.contiguous(), group=ctx.group)
        return torch.cat(parts), None


class _Cast(nn.Module):
    """A linear without bias that casts its weight, as compute backends do."""

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns))

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        return x_TD @ self.weight.to(x_TD.dtype).T


class _Embedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(VOCABULARY, WIDTH))

    def forward(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return self.weight[ids_T].to(dtype)


class _Router(_Cast):
    """Gates in at least float32, with a bias that is a persistent buffer."""

    bias: torch.Tensor

    def __init__(self, num_experts: int) -> None:
        super().__init__(num_experts, WIDTH)
        self.register_buffer("bias", torch.empty(num_experts))

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        high = torch.promote_types(x_TD.dtype, torch.float32)
        if self.weight.dtype != high:
            raise AssertionError(
                f"the router's unit asks for high_precision: its weight must arrive in {high}, not {self.weight.dtype}"
            )
        return (super().forward(x_TD.to(high)) + self.bias).softmax(-1)


class _Attend(nn.Module):
    def __init__(self, num_experts: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(WIDTH))
        self.project = _Cast(WIDTH, WIDTH)
        self.router = _Router(num_experts)

    def forward(self, x_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_TD = x_TD + self.project(x_TD * self.gain.to(x_TD.dtype)).tanh()
        return x_TD, self.router(x_TD)


class _Experts(nn.Module):
    """Local experts, stacked; every row goes to every expert, weighted by its gate."""

    def __init__(self, num_local: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(num_local, WIDTH, EXPERT_WIDTH))
        self.down = nn.Parameter(torch.empty(num_local, EXPERT_WIDTH, WIDTH))
        self.scale = nn.Parameter(torch.empty(num_local))

    def forward(self, rows_RD: torch.Tensor, gates_RE: torch.Tensor) -> torch.Tensor:
        """Return the gated sum over the local experts, (R, D)."""
        dtype = rows_RD.dtype
        hidden_ERF = torch.einsum("rd,edf->erf", rows_RD, self.up.to(dtype)).tanh()
        out_ERD = torch.einsum("erf,efd->erd", hidden_ERF, self.down.to(dtype))
        return torch.einsum("erd,re,e->rd", out_ERD, gates_RE.to(dtype), self.scale.to(dtype))


class _ExpertPhase(nn.Module):
    def __init__(self, num_local: int) -> None:
        super().__init__()
        self.routed = _Experts(num_local)
        self.shared = _Cast(WIDTH, WIDTH)

    def forward(
        self, x_TD: torch.Tensor, rows_RD: torch.Tensor, gates_RE: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.routed(rows_RD, gates_RE), self.shared(x_TD)


class _Block(nn.Module):
    def __init__(self, placement: Placement) -> None:
        super().__init__()
        self.placement = placement
        self.attend = _Attend(placement.num_experts)
        self.experts = _ExpertPhase(placement.num_local)

    def forward(self, x_TD: torch.Tensor) -> torch.Tensor:
        x_TD, gates_TE = self.attend(x_TD)
        group = self.placement.ep_group
        if group is None:
            routed_TD, shared_TD = self.experts(x_TD, x_TD, gates_TE)
            return self._sum(x_TD, shared_TD, routed_TD)
        rows_RD, gates_RE = _gather(x_TD, group), _gather(gates_TE, group)
        mine_RE = gates_RE.chunk(self.placement.ep_size, dim=1)[self.placement.ep_rank]
        routed_RD, shared_TD = self.experts(x_TD, rows_RD, mine_RE)
        return self._sum(x_TD, shared_TD, _sum_and_split(routed_RD, group))

    @staticmethod
    def _sum(x_TD: torch.Tensor, shared_TD: torch.Tensor, routed_TD: torch.Tensor) -> torch.Tensor:
        return x_TD + shared_TD + routed_TD


def _gather(x_TD: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    return _Gather.apply(x_TD, group)  # type: ignore[no-any-return,no-untyped-call]


def _sum_and_split(x_TD: torch.Tensor, group: ProcessGroup) -> torch.Tensor:
    return _SumAndSplit.apply(x_TD, group)  # type: ignore[no-any-return,no-untyped-call]


class _Tail(nn.Module):
    """Parameters that belong to the root: one that no batch uses, and one that some micro-batches use."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.empty(3))
        self.seldom = nn.Parameter(torch.empty(VOCABULARY))


class Toy(nn.Module):
    """Embedding, two blocks in phases, head, tail."""

    def __init__(self, placement: Placement) -> None:
        """Build on the current device; parameters hold no values yet."""
        super().__init__()
        self.embedding = _Embedding()
        self.blocks = nn.ModuleList([_Block(placement) for _ in range(BLOCKS)])
        self.head = _Cast(VOCABULARY, WIDTH)
        self.tail = _Tail()

    def forward(self, ids_T: torch.Tensor, dtype: torch.dtype, *, seldom: bool) -> torch.Tensor:
        """Return logits (T, VOCABULARY), computed in `dtype`."""
        logits_TV = self.by_units(ids_T, dtype)
        return logits_TV + self.tail.seldom.to(dtype) if seldom else logits_TV

    def by_units(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Do the same, unless `seldom`; a plain method, so nothing sees a call of the whole model."""
        x_TD = self.embedding(ids_T, dtype)
        for block in self.blocks:
            x_TD = block(x_TD)
        logits_TV: torch.Tensor = self.head(x_TD)
        return logits_TV

    def leave(self, logits_TV: torch.Tensor) -> torch.Tensor:
        """Do what comes last, if `seldom`: a method by which the plan lets the root's own parameters be used."""
        return logits_TV + self.tail.seldom.to(logits_TV.dtype)


class _FirstStage(nn.Module):
    def __init__(self, toy: Toy) -> None:
        super().__init__()
        self.embedding = toy.embedding
        self.block = toy.blocks[0]

    def forward(self, ids_T: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        x_TD: torch.Tensor = self.block(self.embedding(ids_T, dtype))
        return x_TD


class _LastStage(nn.Module):
    def __init__(self, toy: Toy) -> None:
        super().__init__()
        self.block = toy.blocks[1]
        self.head = toy.head
        self.tail = toy.tail

    def forward(self, x_TD: torch.Tensor, *, seldom: bool) -> torch.Tensor:
        logits_TV: torch.Tensor = self.head(self.block(x_TD))
        return logits_TV + self.tail.seldom.to(x_TD.dtype) if seldom else logits_TV


class StagedToy(nn.Module):
    """The toy as two pipeline stages of one rank, which are called one after the other, never the model itself.

    The stages are no children, so that every parameter has one name, that of the whole model.
    """

    stage_names = ("stages.0", "stages.1")

    def __init__(self, toy: Toy) -> None:
        """Take the parts of a toy."""
        super().__init__()
        self.embedding, self.blocks, self.head, self.tail = toy.embedding, toy.blocks, toy.head, toy.tail
        self.__dict__["stages"] = nn.ModuleList([_FirstStage(toy), _LastStage(toy)])

    def by_stages(self, ids_T: torch.Tensor, dtype: torch.dtype, *, seldom: bool) -> torch.Tensor:
        """Return logits (T, VOCABULARY); a plain method."""
        first, last = self.__dict__["stages"]
        logits_TV: torch.Tensor = last(first(ids_T, dtype), seldom=seldom)
        return logits_TV


def initial_values(name: str, global_shape: tuple[int, ...], stage: int = 0) -> torch.Tensor:
    """Return the first values of a parameter or buffer, float64, by its name."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {stage}".encode()))
    return torch.randn(global_shape, dtype=torch.float64, generator=generator) / 2


def plan_of(model: Toy | StagedToy, placement: Placement, dtype: torch.dtype, *, stage: int = 0) -> ModelPlan:
    """Describe the model; `materialize` fills this rank's experts by their global number."""
    names = ["embedding"]
    for index in range(BLOCKS):
        at = f"blocks.{index}"
        names += [f"{at}.attend.router", f"{at}.attend", f"{at}.experts.routed", f"{at}.experts"]
    names += ["head", ""]
    owned: dict[str, list[str]] = {name: [] for name in names}
    parameters: dict[str, Parameter] = {}
    for name, parameter in model.named_parameters():
        owned[max((unit for unit in names if not unit or name.startswith(f"{unit}.")), key=len)].append(name)
        role = _role(name)
        shape = (placement.num_experts, *parameter.shape[1:]) if role == "expert" else tuple(parameter.shape)
        parameters[name] = Parameter(name=name, role=role, global_shape=shape)
    units = tuple(
        Unit(
            name=name,
            parameters=tuple(owned[name]),
            roles=frozenset(parameters[parameter].role for parameter in owned[name]),
            high_precision=name.endswith(".router"),
            methods=("leave",) if not name and isinstance(model, Toy) else (),
        )
        for name in names
    )

    def materialize(unit: str, device: torch.device) -> None:
        for name in owned[unit]:
            path, _, leaf = name.rpartition(".")
            values = initial_values(name, parameters[name].global_shape, stage)
            if parameters[name].role == "expert":
                values = values.chunk(placement.ep_size)[placement.ep_rank]
            filled = values.to(device, dtype, copy=True)
            setattr(model.get_submodule(path), leaf, nn.Parameter(filled))
        if unit.endswith(".router"):
            bias = initial_values(f"{unit}.bias", (placement.num_experts,), stage)
            model.get_submodule(unit).bias = bias.to(device, dtype)

    roots = model.stage_names if isinstance(model, StagedToy) else ("",)
    return ModelPlan(units=units, parameters=parameters, materialize=materialize, roots=roots)


def _role(name: str) -> Role:
    if ".routed." in name:
        return "expert"
    if ".router." in name:
        return "router"
    return "embedding" if name.startswith("embedding") else "dense"
