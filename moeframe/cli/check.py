"""`moeframe check`: every problem of a recipe at once, or what it composes to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from moeframe.config.compose import Composition, Part, compose
from moeframe.config.dump import scalar_text
from moeframe.config.load import read_recipe
from moeframe.config.misfit import counted
from moeframe.config.notes import notes
from moeframe.config.schema import BACKEND_SECTIONS
from moeframe.config.typed import default_of
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.needs import why_no_cuda
from moeframe.model.counts import count_parameters
from moeframe.schedule.placement import split_layers, stages_of_rank

__all__ = ["check"]


def check(recipe: Path, overrides: Sequence[str], plugins: Sequence[str]) -> str:
    """Return the composition in words.

    Raises:
        RecipeError: with every problem.
        PluginError: a module of `plugins` is broken.
    """
    loaded = read_recipe(recipe, overrides)
    host = build_plugin_manager(plugins, wanted=loaded.backends)
    composition = compose(loaded, Catalog(host))
    return "\n".join([f"{recipe}: good", *_table(composition)])


def _table(composition: Composition) -> Iterator[str]:
    """Yield the lines of the composition."""
    rows = [(kind, _backend(getattr(composition, kind))) for kind in BACKEND_SECTIONS]
    rows += [("substituted", str(one)) for one in composition.substitutions]
    rows += [
        ("layout", _layout(composition)),
        *_stages(composition),
        ("batch", _batch(composition)),
        ("model", _model(composition)),
        *(("note", note) for note in notes(composition)),
    ]
    missing = why_no_cuda() if composition.recipe.launch.device == "cuda" else None
    if missing is not None:
        world = composition.degrees.world
        rows.append(("note", f"needs {counted(world, 'GPU')}; {missing}"))
    width = max(len(title) for title, _ in rows)
    return (f"  {title:<{width}}  {text}" for title, text in rows)


def _backend(part: Part[Any, Any]) -> str:
    """Return a backend, the options that are not at their default, and what it is."""
    changed = {
        spec.name: value
        for spec in fields(part.options)
        if (value := getattr(part.options, spec.name)) != default_of(spec)
    }
    options = f" {scalar_text(changed)}" if changed else ""
    return f"{part.offer.name}{options}: {part.offer.summary.rstrip('.')}"


def _layout(composition: Composition) -> str:
    """Return how the processes are laid out."""
    degrees, launch = composition.degrees, composition.recipe.launch
    nodes = f"{launch.nnodes} nodes x {launch.nproc_per_node}" if launch.nnodes > 1 else "one node"
    processes = f"{degrees.world} {'process' if degrees.world == 1 else 'processes'} ({nodes})"
    data = f"dp_replicate {degrees.dp_replicate} x dp_shard {degrees.dp_shard}"
    return f"{processes} = pp {degrees.pp} x {data}; ep {degrees.ep} x edp {degrees.edp}"


def _stages(composition: Composition) -> Iterator[tuple[str, str]]:
    """Yield how many layers each pipeline stage has and where the stages are, if there are several."""
    count, recipe, traits = composition.num_stages, composition.recipe, composition.schedule.traits
    if count == 1:
        return
    split = split_layers(recipe.model.num_hidden_layers, count, recipe.parallel.layers_per_stage)
    layers = ", ".join(str(len(part)) for part in split)
    first = stages_of_rank(0, composition.degrees.pp, traits.stages_per_rank, traits.placement)
    where = " and ".join(map(str, first))
    yield "stages", f"{count} of {layers} layers; pipeline rank 0 holds {where}"


def _batch(composition: Composition) -> str:
    """Return what one step takes in."""
    train, count = composition.recipe.train, composition.num_micro_batches
    tokens = f"{train.global_batch_size} sequences x {train.seq_len} = {composition.tokens_per_step:,} tokens a step"
    return f"{tokens}; {count} micro-{'batch' if count == 1 else 'batches'} of {train.micro_batch_size} a rank"


def _model(composition: Composition) -> str:
    """Return the size of the model."""
    model = composition.recipe.model
    counts = count_parameters(model)
    mtp = f", and {counts.mtp:,} in {model.num_nextn_predict_layers} MTP module(s)" if counts.mtp else ""
    numbers = f"{counts.total:,} parameters, {counts.activated:,} active for a token{mtp}"
    return f"{model.family}, {composition.recipe.train.precision}, {numbers}"
