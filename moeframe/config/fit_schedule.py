"""Whether a schedule fits the layout, the model, the batch and the sharding. Reads traits; knows no backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from moeframe.config.misfit import FitRule, Misfit, counted, setting
from moeframe.errors import RecipeError
from moeframe.mesh.degrees import divisors
from moeframe.schedule.placement import split_layers

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["SCHEDULE_RULES"]


def _pipeline(c: Composition) -> Iterator[Misfit]:
    traits, pp, name = c.schedule.traits, c.degrees.pp, c.schedule.offer.name
    if pp > 1 and not traits.pipelines:
        phases = ": it runs the phases of a whole model, and a stage is a part of one" if traits.runs_phases else ""
        yield Misfit(
            path="parallel.pp",
            message=f"given {pp}; schedule {name!r} runs one stage, without a pipeline{phases}.",
            layouts=[{"pp": 1}],
            kinds=("schedule",),
            otherwise="Name a schedule that pipelines (`moeframe plugins` lists them).",
        )
    elif pp < traits.min_ranks:
        yield Misfit(
            path="parallel.pp",
            message=f"given {pp}; schedule {name!r} runs on {traits.min_ranks} pipeline ranks or more.",
            layouts=[{"pp": traits.min_ranks}],
            kinds=("schedule",),
            otherwise="Name a schedule without a pipeline (`moeframe plugins` lists them).",
        )


def _layers(c: Composition) -> Iterator[Misfit]:
    traits, pp, layers = c.schedule.traits, c.degrees.pp, c.recipe.model.num_hidden_layers
    ranks = max(pp, traits.min_ranks)
    stages = ranks * traits.stages_per_rank
    if layers < 1 or stages <= layers or (pp > 1 and not traits.pipelines):
        return
    stages_each = f"{counted(traits.stages_per_rank, 'stage')} a rank"
    fewer = range(min(layers // traits.stages_per_rank, pp - 1), traits.min_ranks - 1, -1)
    own = pp == ranks
    yield Misfit(
        path="parallel.pp" if own else "model.num_hidden_layers",
        message=f"given {pp}; with {stages_each} that makes {counted(stages, 'stage')}, and the model has "
        f"{counted(layers, 'layer')} (model.num_hidden_layers)."
        if own
        else f"given {layers}; schedule {c.schedule.offer.name!r} makes {stages} stages on {ranks} pipeline ranks "
        f"({stages_each}), each of 1 layer or more.",
        ways=[f"model.num_hidden_layers={stages} or more"],
        layouts=[{"pp": size} for size in fewer] if own else [],
        kinds=("schedule",),
    )


def _layers_per_stage(c: Composition) -> Iterator[Misfit]:
    layers, given, stages = c.recipe.model.num_hidden_layers, c.recipe.parallel.layers_per_stage, c.num_stages
    if given is None or stages > layers:
        return
    try:
        split_layers(layers, stages, given)
    except ValueError as error:
        even = ",".join(str(len(part)) for part in split_layers(layers, stages))
        yield Misfit(
            path="parallel.layers_per_stage",
            message=f"given {list(given)}; {error} (pp {c.degrees.pp} x "
            f"{counted(c.schedule.traits.stages_per_rank, 'stage')} a rank of schedule {c.schedule.offer.name!r}).",
            ways=[
                f"parallel.layers_per_stage=null, which is [{even}]",
                f"one number of 1 or more for each stage, {layers} in all",
            ],
        )


def _micro_batches(c: Composition) -> Iterator[Misfit]:
    train, name, pp, ranks = c.recipe.train, c.schedule.offer.name, c.degrees.pp, c.degrees.data_ranks
    if train.micro_batch_size < 1 or train.global_batch_size % (ranks * train.micro_batch_size):
        return
    if pp < c.schedule.traits.min_ranks:
        return
    count, sequences = c.num_micro_batches, train.global_batch_size // ranks

    def why_not(number: int) -> str | None:
        return c.schedule.offer.legal_micro_batches(c.schedule.options, pp, number)

    refusal = why_not(count)
    if refusal is None:
        return
    legal = [size for size in divisors(sequences) if why_not(sequences // size) is None]
    more = next((number for number in range(count + 1, count + 8 * pp + 8) if why_not(number) is None), None)
    yield Misfit(
        path="train.micro_batch_size",
        message=f"given {train.micro_batch_size}, which makes {counted(count, 'micro-batch')} a "
        f"step (train.global_batch_size {train.global_batch_size} / {counted(ranks, 'data rank')} / "
        f"{train.micro_batch_size}); schedule {name!r}: {refusal}",
        ways=[
            *setting("train.micro_batch_size", legal),
            *([] if more is None else [f"train.global_batch_size={more * ranks * train.micro_batch_size}"]),
        ],
        kinds=("schedule",),
        otherwise="Change train.global_batch_size or train.micro_batch_size.",
    )


def _split_backward(c: Composition) -> Iterator[Misfit]:
    if c.schedule.traits.splits_backward and not c.sharding.traits.parameters_stay_whole:
        yield Misfit(
            path="sharding.name",
            message=f"{c.sharding.offer.name!r} frees gathered parameters after the forward, but schedule "
            f"{c.schedule.offer.name!r} computes weight gradients later, apart from input gradients.",
            ways=_keeping_whole(c),
            kinds=("sharding", "schedule"),
            otherwise="Name a sharding that keeps parameters whole, or another schedule (`moeframe plugins`).",
        )


def _keeping_whole(c: Composition) -> list[str]:
    """Return the options of the sharding, switched one by one, with which parameters stay whole."""
    part, keeping = c.sharding, []
    switches = {spec.name: getattr(part.options, spec.name) for spec in fields(part.options)}
    for name, value in switches.items():
        if isinstance(value, bool):
            with suppress(ValueError, RecipeError):  # options that the sharding refuses
                if part.offer.traits(replace(part.options, **{name: not value}), c.precision).parameters_stay_whole:
                    keeping.append(f"sharding.options.{name}={'false' if value else 'true'}")
    return keeping


def _phases(c: Composition) -> Iterator[Misfit]:
    if c.schedule.traits.runs_phases and not c.sharding.traits.runs_phases:
        yield Misfit(
            path="sharding.name",
            message=f"{c.sharding.offer.name!r} runs a model as a whole only, but schedule {c.schedule.offer.name!r} "
            "runs the phases of its layers one by one.",
            kinds=("sharding", "schedule"),
            otherwise="Name another sharding, or another schedule (`moeframe plugins`).",
        )


def _whole_blocks(c: Composition) -> Iterator[Misfit]:
    if c.schedule.traits.runs_phases and c.recipe.train.recompute == "full":
        yield Misfit(
            path="train.recompute",
            message="given full, which gives a layer one backward; schedule "
            f"{c.schedule.offer.name!r} runs a backward for each phase.",
            ways=["train.recompute=selective or none"],
            kinds=("schedule",),
        )


def _compiled_schedule(c: Composition) -> Iterator[Misfit]:
    if c.recipe.train.compile and c.schedule.traits.splits_backward:
        yield Misfit(
            path="train.compile",
            message=f"given true; schedule {c.schedule.offer.name!r} runs weight gradients apart, which crashes in "
            "compiled modules (pytorch issue 161904).",
            ways=["train.compile=false"],
            kinds=("schedule",),
        )


SCHEDULE_RULES: Final[tuple[FitRule, ...]] = (
    _pipeline,
    _layers,
    _layers_per_stage,
    _micro_batches,
    _split_backward,
    _phases,
    _whole_blocks,
    _compiled_schedule,
)
