"""Parallel layouts that a recipe could have instead of its own, as the overrides that one would type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import lcm
from typing import Any, Final

from moeframe.config.schema import Recipe, TrainConfig
from moeframe.mesh.degrees import Degrees, divisors

__all__ = ["layouts", "settings"]

_MOST_WORLDS: Final = 16
_MOST_PROCESSES: Final = 2**20
_MOST_BATCHES: Final = 16
_KEYS: Final = (
    "launch.nproc_per_node",
    "parallel.pp",
    "parallel.dp_replicate",
    "parallel.ep",
    "parallel.layers_per_stage",
    "train.global_batch_size",
    "train.micro_batch_size",
)


def layouts(recipe: Recipe, wanted: Mapping[str, int] | None = None) -> Iterator[Recipe]:
    """Yield the recipe with other numbers of processes and batches, so that degrees factor and ranks share the batch.

    Args:
        recipe: keeps its nodes, its model and, where that is possible, its processes and its batch.
        wanted: keys of `parallel` that it shall have; it keeps the others.

    Raises:
        UnknownValueError: a value that this needs could not be read.
    """
    degrees_wanted: dict[str, Any] = dict(wanted or {})
    parallel = replace(recipe.parallel, **degrees_wanted)
    if parallel.pp != recipe.parallel.pp:
        parallel = replace(parallel, layers_per_stage=None)
    model, launch, train = recipe.model, recipe.launch, recipe.train
    if min(parallel.pp, parallel.dp_replicate, parallel.ep, launch.nnodes, model.n_routed_experts) < 1:
        return
    if min(train.global_batch_size, train.micro_batch_size) < 1:
        return
    unit = lcm(parallel.pp * parallel.dp_replicate * parallel.ep, launch.nnodes)
    worlds = [unit * factor for factor in range(1, _MOST_WORLDS + 1) if unit * factor <= _MOST_PROCESSES]
    if recipe.world_size % unit == 0:
        worlds.insert(0, recipe.world_size)
    for world in worlds:
        degrees = Degrees(world=world, pp=parallel.pp, dp_replicate=parallel.dp_replicate, ep=parallel.ep)
        if degrees.problems(model.n_routed_experts):
            continue
        for batch, micro_batch in _batches(train, degrees.data_ranks):
            yield replace(
                recipe,
                parallel=parallel,
                launch=replace(launch, nproc_per_node=world // launch.nnodes),
                train=replace(train, global_batch_size=batch, micro_batch_size=micro_batch),
            )


def _batches(train: TrainConfig, data_ranks: int) -> Iterator[tuple[int, int]]:
    """Yield global and micro-batch sizes: the given ones first, then smaller micro-batches, then larger batches."""
    given, micro_batch = train.global_batch_size, train.micro_batch_size
    if given % data_ranks == 0:
        sizes = divisors(given // data_ranks)
        yield from ((given, size) for size in sorted(sizes, key=lambda size: (size > micro_batch, -size)))
    step = data_ranks * micro_batch
    yield from ((step * count, micro_batch) for count in range(given // step + 1, given // step + 1 + _MOST_BATCHES))


def settings(before: Recipe, after: Recipe) -> str:
    """Return the overrides that make one recipe the other, as a command line has them."""
    changed = []
    for key in _KEYS:
        section, _, name = key.partition(".")
        old, new = (getattr(getattr(recipe, section), name) for recipe in (before, after))
        if old != new:
            changed.append(f"{key}={'null' if new is None else new}")
    return " ".join(changed)
