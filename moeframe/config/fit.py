"""Whether backends fit together and fit the recipe. Reads traits; knows no backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from moeframe.config.fit_dispatcher import DISPATCHER_RULES
from moeframe.config.fit_schedule import SCHEDULE_RULES
from moeframe.config.misfit import FitRule, Misfit, setting
from moeframe.mesh.degrees import divisors

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["FIT_RULES"]


def _dtype(kind: str, does: str) -> FitRule:
    def rule(c: Composition) -> Iterator[Misfit]:
        part = getattr(c, kind)
        legal = part.traits.wire_dtypes if kind == "dispatcher" else part.traits.dtypes
        if c.precision.compute in legal:
            return
        yield Misfit(
            path="train.precision",
            message=f"given {c.recipe.train.precision}; {kind} {part.offer.name!r} {does} {', '.join(legal)} only.",
            ways=setting("train.precision", legal),
            kinds=(kind,),
        )

    return rule


def _compiled_dtype(c: Composition) -> Iterator[Misfit]:
    compute, traits, given = c.compute.offer.name, c.compute.traits, c.precision.compute
    if c.recipe.train.compile and given not in traits.compiles_dtypes:
        able = ", ".join(traits.compiles_dtypes) or "no dtype"
        yield Misfit(
            path="train.compile",
            message=f"given true, and train.precision computes in {given}; torch.compile can trace compute "
            f"{compute!r} with its options in {able} only.",
            ways=["train.compile=false", *setting("train.precision", traits.compiles_dtypes)],
            kinds=("compute",),
        )


def _compiled_sharding(c: Composition) -> Iterator[Misfit]:
    if c.recipe.train.compile and not c.sharding.traits.supports_compile:
        yield Misfit(
            path="train.compile",
            message=f"given true; sharding {c.sharding.offer.name!r} is not known to work on compiled modules.",
            ways=["train.compile=false"],
            kinds=("sharding",),
        )


def _data_ranks(c: Composition) -> Iterator[Misfit]:
    least, degrees = c.sharding.traits.min_data_ranks, c.degrees
    if degrees.data_ranks < least:
        yield Misfit(
            path="sharding.name",
            message=f"{c.sharding.offer.name!r} needs {least} data ranks or more; the recipe has {degrees.data_ranks} "
            f"(world {degrees.world} / pp {degrees.pp}).",
            layouts=[{}],
            kinds=("sharding",),
            otherwise="Launch more processes (launch.nproc_per_node).",
        )


def _sharded_pipeline(c: Composition) -> Iterator[Misfit]:
    if c.degrees.pp > 1 and not c.sharding.traits.supports_pipeline:
        yield Misfit(
            path="parallel.pp",
            message=f"given {c.degrees.pp}; sharding {c.sharding.offer.name!r} works without a pipeline only.",
            layouts=[{"pp": 1}],
            kinds=("sharding",),
            otherwise="Use parallel.pp=1 and a schedule without a pipeline (`moeframe plugins` lists them).",
        )


def _replicas(c: Composition) -> Iterator[Misfit]:
    traits, degrees, name = c.sharding.traits, c.degrees, c.sharding.offer.name
    if degrees.dp_replicate > 1 and not traits.supports_dp_replicate:
        yield Misfit(
            path="parallel.dp_replicate",
            message=f"given {degrees.dp_replicate}; sharding {name!r} knows no replicas of its shards.",
            layouts=[{"dp_replicate": 1}],
            kinds=("sharding",),
            otherwise="Name a sharding that does (`moeframe plugins` lists them).",
        )
    if degrees.dp_replicate == 1 and traits.needs_dp_replicate:
        legal = divisors(degrees.edp)[1:]
        yield Misfit(
            path="parallel.dp_replicate",
            message=f"given 1; sharding {name!r} shards within replicas and needs 2 or more of them, each of "
            f"parallel.ep={degrees.ep} data ranks or a multiple (now: {degrees.data_ranks} in all).",
            ways=setting("parallel.dp_replicate", legal),
            layouts=[] if legal else [{"dp_replicate": 2}],
            kinds=("sharding",),
            otherwise="Launch more processes (launch.nproc_per_node).",
        )


def _vocabulary(c: Composition) -> Iterator[Misfit]:
    vocabulary, size = c.data.traits.vocabulary, c.recipe.model.vocab_size
    if vocabulary is not None and vocabulary > size >= 1:
        yield Misfit(
            path="model.vocab_size",
            message=f"given {size}; data set {c.data.offer.name!r} has {vocabulary} distinct tokens.",
            ways=[f"model.vocab_size={vocabulary} or more"],
            kinds=("data",),
        )


def _held_out(c: Composition) -> Iterator[Misfit]:
    every = c.recipe.train.eval_every
    if every and not c.data.traits.holds_out:
        yield Misfit(
            path="train.eval_every",
            message=f"given {every}; data set {c.data.offer.name!r} with these options holds out nothing to validate.",
            ways=[
                "train.eval_every=0",
                "data.options that hold some data out (`moeframe explain RECIPE data` lists them)",
            ],
            kinds=("data",),
        )


FIT_RULES: Final[tuple[FitRule, ...]] = (
    *DISPATCHER_RULES,
    _dtype("dispatcher", "sends"),
    _dtype("compute", "computes in"),
    _dtype("sharding", "lays out weights of"),
    *SCHEDULE_RULES,
    _compiled_dtype,
    _compiled_sharding,
    _data_ranks,
    _sharded_pipeline,
    _replicas,
    _vocabulary,
    _held_out,
)
