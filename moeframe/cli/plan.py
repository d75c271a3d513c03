"""`moeframe plan`: how a job lies on its ranks and what each holds in memory, for any number of ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from moeframe.config.compose import Composition, compose
from moeframe.config.footprint import NOT_COUNTED, Footprint, Item, footprint
from moeframe.config.load import read_recipe
from moeframe.config.misfit import counted
from moeframe.config.notes import notes
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

__all__ = ["plan"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_AXES: Final = ("pp", "dp_replicate", "dp_shard", "ep", "edp")


def plan(recipe: Path, overrides: Sequence[str], plugins: Sequence[str], *, as_json: bool = False) -> str:
    """Return the plan in words, or as JSON.

    The job may be one for another machine: what this one lacks is no problem.

    Raises:
        RecipeError: with every problem.
        PluginError: a module of `plugins` is broken.
    """
    loaded = read_recipe(recipe, overrides)
    host = build_plugin_manager(plugins, wanted=loaded.backends)
    composition = compose(loaded, Catalog(host), elsewhere=True)
    prints = [footprint(composition, rank) for rank in range(composition.degrees.pp)]
    if as_json:
        return json.dumps(_data(composition, prints), indent=2)
    return "\n".join([f"{recipe}", *_lines(composition, prints)])


def _data(composition: Composition, prints: Sequence[Footprint]) -> dict[str, Any]:
    """Return the plan as plain data; every number of bytes is called so."""
    degrees, train = composition.degrees, composition.recipe.train
    return {
        "world": degrees.world,
        "mesh": {axis: getattr(degrees, axis) for axis in _AXES},
        "tokens_per_rank_and_micro_batch": train.micro_batch_size * train.seq_len,
        "micro_batches": composition.num_micro_batches,
        "backends": composition.recipe.backends,
        "ranks": [{**asdict(one), "layers": list(one.layers), "num_bytes": one.num_bytes} for one in prints],
        "not_counted": list(NOT_COUNTED),
        "notes": [*notes(composition)],
    }


def _lines(composition: Composition, prints: Sequence[Footprint]) -> Iterator[str]:
    degrees, train = composition.degrees, composition.recipe.train
    yield f"  {degrees.world} ranks: " + ", ".join(f"{axis} {getattr(degrees, axis)}" for axis in _AXES)
    yield (
        f"  {train.micro_batch_size * train.seq_len:,} tokens on a rank in a micro-batch, "
        f"{counted(composition.num_micro_batches, 'micro-batch')} a step"
    )
    yield from (f"  note: {note}" for note in notes(composition))
    for one in prints:
        yield from _rank_lines(one, degrees.pp)
    yield ""
    yield "Not counted:"
    yield from (f"  - {what}" for what in NOT_COUNTED)


def _rank_lines(one: Footprint, pipeline_ranks: int) -> Iterator[str]:
    """Yield what a rank of one pipeline position holds."""
    layers = counted(len(one.layers), "decoder layer")
    yield ""
    yield (
        f"Each rank of pipeline rank {one.pipeline_rank}, {layers}:" if pipeline_ranks > 1 else f"Each rank, {layers}:"
    )
    for parameters in one.parameters:
        yield f"  {parameters.role + ' parameters':<44}{parameters.of_rank:>22,}  {parameters.formula}"
    items = [*one.state, *one.buffers]
    yield from (_item(item) for item in items)
    if items:
        yield f"  {'sum of bytes':<44}{_size(one.num_bytes):>22}"
    yield from (f"  unknown: {why}" for why in one.unknown)
    if not one.buffers:
        yield "  the dispatcher holds no buffers between calls"


def _item(item: Item) -> str:
    return f"  {item.name:<44}{_size(item.num_bytes):>22}  {item.formula}"


def _size(num_bytes: int) -> str:
    """Return a number of bytes in the largest binary unit that it fills."""
    power = min(max(num_bytes.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{num_bytes / 1024**power:,.3f} {_UNITS[power]}" if power else f"{num_bytes} B"
