"""A sharding strategy at work on one rank: the toy laid out, its steps run, its results compared with one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import distributed as dist

from moeframe.mesh.build import build_meshes
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import DtypeName, Precision
from moeframe.protocols.sharding import ShardedModel, ShardingTraits
from moeframe.testing.device import rank_device
from moeframe.testing.sharding_causes import require_same_gradients, worst
from moeframe.testing.sharding_reference import SETTINGS, Batches, Reference
from moeframe.testing.sharding_toy import Placement, StagedToy, Toy, plan_of

if TYPE_CHECKING:
    from moeframe.hooks.offers import ShardingOffer

__all__ = ["TOLERANCE", "Bench", "Subject", "describe", "learning_rate", "require"]

TOLERANCE: Mapping[DtypeName, float] = {"float64": 1e-9, "float32": 1e-4, "bfloat16": 0.1}
"""Largest allowed difference of a tensor, relative to its largest value."""

Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The strategy under test, as it travels to the ranks."""

    offer: ShardingOffer
    options: Mapping[str, Any]
    device: str

    def traits(self, precision: DtypeName = "float64") -> ShardingTraits:
        """Traits of the offer for these options."""
        return self.offer.traits(self.offer.options(**self.options), Precision.of(precision))

    @property
    def precision(self) -> DtypeName:
        """The most exact one that the strategy knows."""
        return "float64" if "float64" in self.traits().dtypes else "float32"


def describe(degrees: Degrees) -> str:
    """Return a layout in words."""
    axes = {"pp": degrees.pp, "ep": degrees.ep, "dp_replicate": degrees.dp_replicate}
    return f"world {degrees.world}, " + ", ".join(f"{axis} {size}" for axis, size in axes.items())


def require(condition: bool, message: str) -> None:  # noqa: FBT001  # an assertion that survives -O
    """Raise AssertionError unless `condition`."""
    if not condition:
        raise AssertionError(message)


def learning_rate(step: int) -> float:
    """Return the rate of a step; a trainer sets it anew before each."""
    return SETTINGS.lr / (step + 1)


class Bench:
    """The toy laid out over the ranks of this job, beside the reference.

    Args:
        subject: the strategy.
        degrees: of the job.
        num_experts: of the toy; by default two on each ep rank.
        batches: the data; by default three micro-batches a step.
        precision: of the toy, by default the most exact one that the strategy knows; the reference is float64.
        filled_as: seed of the toy's first values, when they shall differ from the reference's.
        called: what a schedule calls: the model, its units one by one, or two stages of this rank.
    """

    def __init__(
        self,
        subject: Subject,
        degrees: Degrees,
        *,
        num_experts: int | None = None,
        batches: Batches | None = None,
        precision: DtypeName | None = None,
        filled_as: int | None = None,
        called: Literal["model", "units", "stages"] = "model",
    ) -> None:
        self.degrees, self.called = degrees, called
        rank = dist.get_rank() if dist.is_initialized() else 0
        self.device = rank_device(subject.device)
        self.meshes = build_meshes(degrees, self.device)
        name = precision or subject.precision
        self.precision = Precision.of(name)
        self.tolerance = TOLERANCE[name]
        self.place = f"{describe(degrees)}, rank {rank}"
        count = num_experts or 2 * degrees.ep
        self.batches = replace(batches or Batches(data_ranks=1), data_ranks=degrees.data_ranks)
        self.stage = self.meshes.rank("pp")
        self.reference = Reference(count, self.batches, stage=self.stage)
        placement = Placement(
            num_experts=count,
            ep_size=self.meshes.size("ep"),
            ep_rank=self.meshes.rank("ep"),
            ep_group=self.meshes.group("ep"),
        )
        with torch.device("meta"):
            toy = Toy(placement)
            model = StagedToy(toy) if called == "stages" else toy
        filled = self.stage if filled_as is None else filled_as
        self.plan = plan_of(model, placement, self.precision.dtype("parameters"), stage=filled)
        strategy = subject.offer.build(subject.offer.options(**subject.options))
        self.sharded: ShardedModel = strategy.shard(model, self.plan, self.meshes, self.precision)
        self.roles = {name: parameter.role for name, parameter in self.plan.parameters.items()}

    def forward(self, step: int, micro_batch: int) -> torch.Tensor:
        """Return this rank's part of the loss of a micro-batch."""
        ids_T = self.batches.ids(step, micro_batch, self.meshes.rank("dp"))
        dtype, module = self.precision.dtype("compute"), self.sharded.module
        seldom = self.batches.uses_seldom(micro_batch)
        if self.called == "units":
            logits_TV = Toy.by_units.__get__(module)(ids_T.to(self.device), dtype)
        elif self.called == "stages":
            logits_TV = StagedToy.by_stages.__get__(module)(ids_T.to(self.device), dtype, seldom=seldom)
        else:
            logits_TV = module(ids_T.to(self.device), dtype, seldom=seldom)
        return self.batches.loss(logits_TV.to(self.precision.dtype("high")), ids_T.to(self.device))

    def backward(self, step: int) -> None:
        """Run every micro-batch of a step and finish the gradients."""
        for micro_batch in range(self.batches.micro_batches):
            self.forward(step, micro_batch).backward()  # type: ignore[no-untyped-call]
        self.sharded.finish_gradients()

    def backward_in_pieces(self, step: int) -> None:
        """Do the same with a backward for each piece, each micro-batch's between the next one's forwards."""
        self.sharded.hold_gradients()
        before = _Flight()
        for micro_batch in range(self.batches.micro_batches):
            flight = _Flight()
            for piece in self._pieces(step, micro_batch):
                flight.forward(piece)
                if before:
                    before.backward()
            before = flight
        while before:
            before.backward()
        self.sharded.finish_gradients()

    def _pieces(self, step: int, micro_batch: int) -> list[Callable[[Any], torch.Tensor]]:
        """Return the units of a micro-batch's forward, the first without an input, the last with the loss."""
        toy = self.sharded.module
        ids_T = self.batches.ids(step, micro_batch, self.meshes.rank("dp")).to(self.device)
        dtype, high = self.precision.dtype("compute"), self.precision.dtype("high")
        leave: Any = toy.leave if self.batches.uses_seldom(micro_batch) else lambda logits_TV: logits_TV
        blocks: Any = toy.blocks
        embedding: Any = toy.embedding
        head: Any = toy.head
        return [
            lambda _: embedding(ids_T, dtype),
            *blocks,
            lambda x_TD: self.batches.loss(leave(head(x_TD)).to(high), ids_T),
        ]

    def loss(self, step: int) -> float:
        """Return the loss of a step over all data ranks, without gradients, as validation does."""
        with torch.no_grad():
            losses = [self.forward(step, micro_batch) for micro_batch in range(self.batches.micro_batches)]
            total = torch.stack(losses).sum()
            group = self.meshes.group("dp")
            if group is not None:
                dist.all_reduce(total, group=group)
        return float(total)

    def train(self, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Run a step on both sides, clipped to half the norm; the first one's gradients are compared before that."""
        gradients = self.reference.gradients(step)
        self.backward(step)
        if step == 0:
            self.require_gradients(step)
        norm = self.sharded.clip_(None)
        self.sharded.clip_(float(norm) / 2)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        self.reference.update({name: gradient / 2 for name, gradient in gradients.items()}, learning_rate(step))

    def local(self, found: Tensors) -> dict[str, torch.Tensor]:
        """Return what `full_gradients` and `full_parameters` must give here: of experts the local ones."""
        size, rank = self.meshes.size("ep"), self.meshes.rank("ep")
        return {name: t.chunk(size)[rank] if self.roles[name] == "expert" else t for name, t in found.items()}

    def partial_sums(self, step: int) -> dict[str, dict[str, torch.Tensor]]:
        """Return what gradients would be if only the ranks along one axis were added up, by which ranks."""
        each = [self.reference.part(step, rank) for rank in range(self.degrees.data_ranks)]
        me = self.meshes.rank("dp")
        found: dict[str, dict[str, torch.Tensor]] = {}
        if len(each) > 1:
            found["this rank"] = self.local(each[me])
        at = self.degrees.coordinates(me)
        for axis, fixed in _LINES.items():
            line = [
                part
                for rank, part in enumerate(each)
                if all(self.degrees.coordinates(rank)[other] == at[other] for other in fixed)
            ]
            if 1 < len(line) < len(each):
                sums = {name: torch.stack([part[name] for part in line]).sum(0) for name in each[0]}
                found[f"the ranks of {axis}"] = self.local(sums)
        return found

    def require_gradients(self, step: int, what: str = "") -> dict[str, torch.Tensor]:
        """Require that full gradients are those of one process; return them."""
        found = self.sharded.full_gradients()
        self._require_names(found, "full_gradients")
        self._require_dtypes(found, "full_gradients")
        require_same_gradients(
            _on_cpu(found),
            self.local(self.reference.gradients(step)),
            self.partial_sums(step),
            self.roles,
            place=f"{self.place}{what}",
            degrees=self.degrees,
            micro_batches=self.batches.micro_batches,
            tolerance=self.tolerance,
        )
        return found

    def require_parameters(self, what: str) -> None:
        """Require that full parameters are those of the reference."""
        found = self.sharded.full_parameters()
        self._require_names(found, "full_parameters")
        self._require_dtypes(found, "full_parameters")
        self.require_close(found, self.local(self.reference.parameters), f"parameters {what}")

    def require_close(self, found: Tensors, wanted: Tensors, what: str) -> None:
        """Require equal tensors within the tolerance, else name the first that differ."""
        wrong = []
        for name, expected in wanted.items():
            if found[name].shape != expected.shape:
                wrong.append(f"{name} has shape {tuple(found[name].shape)}, expected {tuple(expected.shape)}")
            elif (difference := worst(found[name].cpu(), expected)).exceeds(self.tolerance):
                wrong.append(f"{name} ({self.roles.get(name, 'buffer')}) {difference}")
        listed = "; ".join(wrong[:3])
        require(not wrong, f"{self.place}: {what}: {len(wrong)} of {len(wanted)} differ from one process: {listed}")

    def _require_names(self, found: Tensors, method: str) -> None:
        missing, unknown = sorted(self.roles.keys() - found.keys()), sorted(found.keys() - self.roles.keys())
        require(not missing and not unknown, f"{self.place}: {method} misses {missing} and adds {unknown}")

    def _require_dtypes(self, found: Tensors, method: str) -> None:
        wanted = self.precision.dtype("parameters")
        wrong = {name: str(tensor.dtype) for name, tensor in found.items() if tensor.dtype != wanted}
        require(not wrong, f"{self.place}: {method} must give {wanted} in every precision, but gives {wrong}")


_LINES: Mapping[str, tuple[str, ...]] = {
    "ep": ("edp",),
    "edp": ("ep",),
    "dp_shard": ("dp_replicate",),
    "dp_replicate": ("dp_shard",),
}
"""The ranks of an axis are those that agree on these."""


class _Flight:
    """The pieces of one micro-batch that have run forward; each has a graph of its own, cut off at its input."""

    def __init__(self) -> None:
        self._ran: list[tuple[torch.Tensor | None, torch.Tensor]] = []
        self._grad: torch.Tensor | None = None

    def __bool__(self) -> bool:
        """Whether a piece waits for its backward."""
        return bool(self._ran)

    def forward(self, piece: Callable[[Any], torch.Tensor]) -> None:
        """Run the next piece."""
        leaf = self._ran[-1][1].detach().requires_grad_() if self._ran else None
        self._ran.append((leaf, piece(leaf)))

    def backward(self) -> None:
        """Run the backward of the last piece."""
        leaf, out = self._ran.pop()
        torch.autograd.backward(out, self._grad)
        self._grad = None if leaf is None else leaf.grad


def _on_cpu(found: Tensors) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu() for name, tensor in found.items()}
