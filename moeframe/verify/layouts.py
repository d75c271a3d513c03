"""The layouts around a recipe's own, on at most four processes. Reads traits; knows no backend's name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from moeframe.config.compose import Composition
from moeframe.config.schema import LaunchConfig, Recipe
from moeframe.mesh.degrees import Degrees, divisors
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.schedule import ScheduleTraits
from moeframe.protocols.sharding import ShardingTraits
from moeframe.verify.shrink import with_sequences

__all__ = ["MOST_PROCESSES", "Layout", "Layouts", "Shape", "legal_shapes", "plan_layouts"]

MOST_PROCESSES: Final = 4
_BATCHES: Final = (8, 16, 32, 64)
"""Sizes of the global batch to try, until every layout has a legal number of micro-batches."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One job to compare with the reference. `own`: the recipe's own shape, shrunk."""

    title: str
    recipe: Recipe
    degrees: Degrees
    num_micro_batches: int
    own: bool = False

    @property
    def factors(self) -> dict[str, int]:
        """Sizes by which a number can be wrong."""
        degrees = self.degrees
        return {
            "ep": degrees.ep,
            "edp": degrees.edp,
            "dp": degrees.data_ranks,
            "dp_replicate": degrees.dp_replicate,
            "dp_shard": degrees.dp_shard,
            "pp": degrees.pp,
            "world": degrees.world,
            "micro-batches": self.num_micro_batches,
            "micro-batches of all ranks": self.num_micro_batches * degrees.data_ranks,
        }


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """What there is to prove, what cannot be, and what the reader should know."""

    runs: tuple[Layout, ...]
    global_batch_size: int
    notes: tuple[str, ...]


@dataclass(frozen=True, order=True)
class Shape:
    """Sizes of the axes that multiply to the number of processes."""

    pp: int
    dp_replicate: int
    edp_shard: int
    ep: int

    @property
    def degrees(self) -> Degrees:
        """All degrees of such a job."""
        world = self.pp * self.dp_replicate * self.edp_shard * self.ep
        return Degrees(world=world, pp=self.pp, dp_replicate=self.dp_replicate, ep=self.ep)

    @property
    def kinds(self) -> frozenset[str]:
        """Axes with more than one rank."""
        return frozenset(axis for axis, size in vars(self).items() if size > 1)

    def __str__(self) -> str:
        """Return the axes and the number of processes in words."""
        sizes = {
            "PP": self.pp,
            "EP": self.ep,
            "expert-data" if self.ep > 1 else "DP": self.edp_shard,
            "replicas": self.dp_replicate,
        }
        world = self.degrees.world
        parts = [f"{name} {size}" for name, size in sizes.items() if size > 1]
        return f"{' x '.join(parts)} ({world} processes)" if parts else "one process"


def plan_layouts(composition: Composition, shrunk: Recipe) -> Layouts:
    """Return the layouts of a recipe: its own shape first, then those around it that its backends can run.

    Args:
        composition: of the recipe as it was given.
        shrunk: what `shrink` made of it.
    """
    shapes, notes = _ordered(composition)
    for batch in _BATCHES:
        counts = {shape: _micro_batches(composition, shrunk, shape, batch) for shape in shapes}
        if all(counts.values()):
            break
    without = [str(shape) for shape in shapes if not counts[shape]]
    if without:
        notes.append(f"left out, because no legal number of micro-batches was found: {', '.join(without)}.")
    own = _own(composition)
    runs = [
        _layout(shrunk, shape, batch=batch, count=count, own=shape == own)
        for shape in shapes
        if (count := counts[shape])
    ]
    return Layouts(runs=tuple(runs), global_batch_size=batch, notes=tuple(notes))


def _ordered(composition: Composition) -> tuple[list[Shape], list[str]]:
    legal, own = _legal(composition), _own(composition)
    if own in legal:
        return [own, *(shape for shape in legal if shape != own)], []
    axes = " x ".join(sorted(_kinds(composition)))
    why = f"needs more than {MOST_PROCESSES} processes" if own is None else f"is too small for its backends at {own}"
    return legal, [f"the recipe's own shape ({axes}) {why}; the layouts below hold its axes in other combinations."]


def _kinds(composition: Composition) -> frozenset[str]:
    degrees = composition.degrees
    sizes = {axis: getattr(degrees, axis) for axis in ("pp", "dp_replicate", "edp_shard", "ep")}
    return frozenset(axis for axis, size in sizes.items() if size > 1)


def _own(composition: Composition) -> Shape | None:
    """Return the shape with the recipe's axes at 2 each; None when it does not fit."""
    degrees, kinds = composition.degrees, _kinds(composition)
    least = composition.schedule.traits.min_ranks
    shape = Shape(
        pp=max(2, least) if "pp" in kinds else 1,
        dp_replicate=2 if "dp_replicate" in kinds else 1,
        edp_shard=2 if "edp_shard" in kinds else 1,
        ep=2 if "ep" in kinds else 1,
    )
    if kinds == {"ep"} and degrees.ep >= MOST_PROCESSES:
        shape = replace(shape, ep=MOST_PROCESSES)
    return shape if shape.degrees.world <= MOST_PROCESSES else None


def _legal(composition: Composition) -> list[Shape]:
    """Return the shapes that the backends can run, small ones first."""
    return legal_shapes(
        composition.dispatcher.traits,
        composition.sharding.traits,
        composition.schedule.traits,
        replicas=composition.degrees.dp_replicate > 1,
    )


def legal_shapes(
    dispatcher: DispatcherTraits,
    sharding: ShardingTraits,
    schedule: ScheduleTraits,
    *,
    replicas: bool = False,
    most: int = MOST_PROCESSES,
) -> list[Shape]:
    """Return the shapes of at most `most` processes that traits allow, small ones first.

    Replicas of the sharded model only where the sharding needs them, or `replicas` asks for them.
    """
    pipeline = (1, max(2, schedule.min_ranks)) if schedule.pipelines else (1,)
    wanted = replicas or sharding.needs_dp_replicate
    copies = (1, 2) if wanted and sharding.supports_dp_replicate else (1,)
    shapes = [Shape(*sizes) for sizes in product(pipeline, copies, (1, 2), (1, 2, 4))]
    return [
        shape
        for shape in sorted(shapes, key=lambda shape: (shape.degrees.world, shape))
        if shape.degrees.world <= most
        and shape.pp >= schedule.min_ranks
        and (shape.dp_replicate > 1 or not sharding.needs_dp_replicate)
        and shape.degrees.data_ranks >= sharding.min_data_ranks
        and dispatcher.allows_group(shape.ep)
    ]


def _micro_batches(composition: Composition, shrunk: Recipe, shape: Shape, batch: int) -> int | None:
    """Return a legal number of micro-batches, several where that is legal; None when there is none.

    Where one rank reads all data it differs from every size of an axis, so that a wrong factor can be told apart.
    """
    offer, options = composition.schedule.offer, composition.schedule.options
    multiple = composition.dispatcher.traits.token_multiple
    own = batch // shape.degrees.data_ranks
    wished = 4 if shape.degrees.data_ranks == 1 else 2
    legal = [
        count
        for count in divisors(own)
        if offer.legal_micro_batches(options, shape.pp, count) is None
        and own // count * shrunk.train.seq_len % multiple == 0
    ]
    return next((count for count in legal if count >= wished), legal[-1] if legal else None)


def _layout(shrunk: Recipe, shape: Shape, *, batch: int, count: int, own: bool) -> Layout:
    degrees = shape.degrees
    parallel = replace(shrunk.parallel, pp=shape.pp, dp_replicate=shape.dp_replicate, ep=shape.ep)
    if shape.pp == 1:
        parallel = replace(parallel, layers_per_stage=None)
    recipe = replace(
        with_sequences(shrunk, batch),
        parallel=parallel,
        train=replace(shrunk.train, global_batch_size=batch, micro_batch_size=batch // (degrees.data_ranks * count)),
        launch=LaunchConfig(nnodes=1, nproc_per_node=degrees.world, device="cpu"),
    )
    return Layout(title=str(shape), recipe=recipe, degrees=degrees, num_micro_batches=count, own=own)
