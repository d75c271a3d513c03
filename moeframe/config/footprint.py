"""What a rank of a job holds, in bytes by formula: state of the training and buffers. Starts nothing, needs no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, get_args

from moeframe.config.compose import Composition
from moeframe.mesh.degrees import Degrees
from moeframe.model.part_counts import RoleCounts, count_part
from moeframe.protocols.dispatcher import BufferRequest
from moeframe.protocols.precision import DtypeName
from moeframe.protocols.sharding import Role, Spread
from moeframe.schedule.placement import split_layers, stages_of_rank

__all__ = ["NOT_COUNTED", "Footprint", "Item", "Parameters", "footprint"]

_BYTES: Final[dict[DtypeName, int]] = {"float32": 4, "float64": 8, "bfloat16": 2}
_MOMENTS: Final = 2
NOT_COUNTED: Final = (
    "activations, which depend on kernels, on recomputation and on the routing",
    "weights that are cast or gathered while they are in use, and flat buffers of collectives",
    "padding of shards, the router's correction biases, and what CUDA and NCCL hold",
    "traffic between ranks",
)


@dataclass(frozen=True, kw_only=True)
class Item:
    """Memory of one rank. `formula` says how `num_bytes` arises."""

    name: str
    num_bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """Parameters of one role on one rank.

    `of_stage`: in the rank's stages, all experts counted. `of_rank`: of them on this rank before any sharding.
    """

    role: Role
    of_stage: int
    of_rank: int
    formula: str


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """One rank of a pipeline position; all ranks of the position hold the same. `unknown`: why items are missing."""

    pipeline_rank: int
    layers: tuple[int, ...]
    parameters: tuple[Parameters, ...]
    state: tuple[Item, ...]
    buffers: tuple[Item, ...]
    unknown: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Sum of all items."""
        return sum(item.num_bytes for item in (*self.state, *self.buffers))


def footprint(composition: Composition, pipeline_rank: int) -> Footprint:
    """Return what each rank of a pipeline position holds."""
    counts, layers = _counts(composition, pipeline_rank)
    degrees = composition.degrees
    parameters = tuple(_parameters(role, counts, degrees) for role in get_args(Role))
    unknown = []
    if composition.sharding.offer.spread is None:
        unknown.append(f"sharding {composition.sharding.offer.name!r} does not say how state lies on the ranks")
    return Footprint(
        pipeline_rank=pipeline_rank,
        layers=layers,
        parameters=parameters,
        state=tuple(_state(composition, counts)),
        buffers=tuple(_buffers(composition)),
        unknown=tuple(unknown),
    )


def _counts(composition: Composition, pipeline_rank: int) -> tuple[RoleCounts, tuple[int, ...]]:
    """Return the parameters of a pipeline position's stages, and their decoder layers."""
    recipe, traits, stages = composition.recipe, composition.schedule.traits, composition.num_stages
    split = split_layers(recipe.model.num_hidden_layers, stages, recipe.parallel.layers_per_stage)
    total, layers = RoleCounts(), []
    for stage in stages_of_rank(pipeline_rank, composition.degrees.pp, traits.stages_per_rank, traits.placement):
        total += count_part(recipe.model, split[stage], has_embedding=stage == 0, has_head=stage == stages - 1)
        layers += [*split[stage]]
    return total, tuple(layers)


def _parameters(role: Role, counts: RoleCounts, degrees: Degrees) -> Parameters:
    number = int(getattr(counts, role))
    if role == "expert":
        return Parameters(
            role=role, of_stage=number, of_rank=number // degrees.ep, formula=f"{number:,} / ep {degrees.ep}"
        )
    return Parameters(role=role, of_stage=number, of_rank=number, formula="by the model's dimensions")


def _state(composition: Composition, counts: RoleCounts) -> Iterator[Item]:
    """Yield parameters, gradients and optimizer state, each for experts and for everything else."""
    describe = composition.sharding.offer.spread
    if describe is None:
        return
    spread, degrees = describe(composition.sharding.options), composition.degrees
    dtype = composition.precision.parameters
    size = _BYTES[dtype]
    experts, others = counts.expert // degrees.ep, counts.total - counts.expert
    for name, how, copies in (
        ("parameters", spread.parameters, 1),
        ("gradients", spread.gradients, 1),
        ("optimizer state", spread.optimizer, _MOMENTS),
    ):
        for part, number, (ranks, axis) in (
            ("dense, router and embedding", others, _ranks(how, degrees, expert=False)),
            ("experts", experts, _ranks(how, degrees, expert=True)),
        ):
            times = f"{copies} moments x " if copies > 1 else ""
            shared = f" / {axis} {ranks}" if ranks > 1 else ""
            yield Item(
                name=f"{name}: {part}",
                num_bytes=copies * number * size // ranks,
                formula=f"{times}{number:,} {dtype} x {size} B{shared}",
            )


def _ranks(how: Spread, degrees: Degrees, *, expert: bool) -> tuple[int, str]:
    """Return how many ranks share a tensor, and the name of the mesh axis."""
    if how == "whole":
        return 1, ""
    if how == "replica":
        return (degrees.edp_shard, "edp_shard") if expert else (degrees.dp_shard, "dp_shard")
    return (degrees.edp, "edp") if expert else (degrees.data_ranks, "dp")


def _buffers(composition: Composition) -> Iterator[Item]:
    """Yield what the dispatcher holds for the whole job."""
    recipe, part = composition.recipe, composition.dispatcher
    if part.offer.buffers is None:
        return
    request = BufferRequest(
        ep_size=composition.degrees.ep,
        num_experts=recipe.model.n_routed_experts,
        hidden_size=recipe.model.hidden_size,
        top_k=recipe.model.num_experts_per_tok,
        max_tokens=recipe.train.micro_batch_size * recipe.train.seq_len,
    )
    for buffer in part.offer.buffers(part.options, request):
        yield Item(name=f"{part.offer.name}: {buffer.name}", num_bytes=buffer.num_bytes, formula=buffer.formula)
