"""Whether backends fit together and fit the recipe. Reads traits; knows no backend's name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Final

from moeframe.errors import Problem, RecipeError
from moeframe.mesh.degrees import divisors, legal_ep
from moeframe.schedule.placement import split_layers

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["FIT_RULES"]


def _dispatcher_group(c: Composition) -> Iterator[Problem]:
    traits, ep = c.dispatcher.traits, c.degrees.ep
    name = c.dispatcher.offer.name
    if traits.group_sizes is not None:
        if ep in traits.group_sizes:
            return
        possible = [
            size for size in traits.group_sizes if size in legal_ep(c.degrees.dp_shard, c.recipe.model.n_routed_experts)
        ]
        yield Problem(
            path="parallel.ep",
            message=f"given {ep}; dispatcher {name!r} works between {_or(traits.group_sizes)} ranks only.",
            fix=f"Use parallel.ep={_or(possible)}, or name another dispatcher (`moeframe plugins` lists them)."
            if possible
            else "Launch another number of processes, or name another dispatcher (`moeframe plugins` lists them).",
        )
        return
    if ep < traits.min_group:
        yield Problem(
            path="parallel.ep",
            message=f"given {ep}; dispatcher {name!r} works between {traits.min_group} ranks or more.",
            fix="Raise parallel.ep, or name another dispatcher.",
        )
    if traits.max_group is not None and ep > traits.max_group:
        yield Problem(
            path="parallel.ep",
            message=f"given {ep}; dispatcher {name!r} works between at most {traits.max_group} rank(s).",
            fix=f"Use parallel.ep={traits.max_group}, or name another dispatcher (`moeframe plugins` lists them).",
        )


def _or(numbers: Sequence[int]) -> str:
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


def _dispatcher_experts(c: Composition) -> Iterator[Problem]:
    traits, experts, name = c.dispatcher.traits, c.recipe.model.n_routed_experts, c.dispatcher.offer.name
    local = experts // c.degrees.ep
    if traits.max_local_experts is not None and local > traits.max_local_experts:
        yield Problem(
            path="parallel.ep",
            message=f"given {c.degrees.ep}, which leaves {local} of {experts} experts on each rank; dispatcher "
            f"{name!r} takes at most {traits.max_local_experts}.",
            fix=f"Raise parallel.ep to {-(-experts // traits.max_local_experts)} or more, or name another dispatcher.",
        )
    if experts % traits.experts_multiple:
        multiple = traits.experts_multiple
        yield Problem(
            path="model.n_routed_experts",
            message=f"given {experts}; dispatcher {name!r} needs a multiple of {multiple}.",
            fix=f"Use {-(-experts // multiple) * multiple}, or name another dispatcher.",
        )


def _dispatcher_shapes(c: Composition) -> Iterator[Problem]:
    traits, model, name = c.dispatcher.traits, c.recipe.model, c.dispatcher.offer.name
    if traits.max_topk is not None and model.num_experts_per_tok > traits.max_topk:
        yield Problem(
            path="model.num_experts_per_tok",
            message=f"given {model.num_experts_per_tok}; dispatcher {name!r} sends a token to at most "
            f"{traits.max_topk} experts.",
            fix=f"Use {traits.max_topk} or less, or name another dispatcher.",
        )
    if model.hidden_size % traits.hidden_multiple:
        multiple = traits.hidden_multiple
        nearest = (model.hidden_size // multiple + 1) * multiple
        yield Problem(
            path="model.hidden_size",
            message=f"given {model.hidden_size}; dispatcher {name!r} needs a multiple of {multiple}.",
            fix=f"Use {nearest}, or name another dispatcher.",
        )
    if model.hidden_size < traits.min_hidden:
        yield Problem(
            path="model.hidden_size",
            message=f"given {model.hidden_size}; dispatcher {name!r} sends rows of at least {traits.min_hidden}.",
            fix=f"Use {traits.min_hidden} or more, or name another dispatcher.",
        )
    if traits.max_hidden is not None and model.hidden_size > traits.max_hidden:
        yield Problem(
            path="model.hidden_size",
            message=f"given {model.hidden_size}; dispatcher {name!r} sends rows of at most {traits.max_hidden}.",
            fix=f"Use {traits.max_hidden} or less, or name another dispatcher.",
        )
    train = c.recipe.train
    tokens = train.micro_batch_size * train.seq_len
    if tokens % traits.token_multiple:
        yield Problem(
            path="train.micro_batch_size",
            message=f"given {train.micro_batch_size}, which is {tokens} tokens of a rank at seq_len {train.seq_len}; "
            f"dispatcher {name!r} needs a multiple of {traits.token_multiple}.",
            fix="Change train.micro_batch_size or train.seq_len, or name another dispatcher.",
        )


def _capacity(c: Composition) -> Iterator[Problem]:
    if c.recipe.model.capacity_factor is not None and not c.dispatcher.traits.supports_capacity_drop:
        yield Problem(
            path="model.capacity_factor",
            message=f"given {c.recipe.model.capacity_factor}; dispatcher {c.dispatcher.offer.name!r} drops no tokens.",
            fix="Use null, or name another dispatcher.",
        )


def _fused_demand(c: Composition) -> Iterator[Problem]:
    demand, fused = c.recipe.dispatcher.use_flex_dispatcher, c.dispatcher.traits.fused
    if demand is None or demand == fused:
        return
    name = c.dispatcher.offer.name
    is_text = "a fused one" if fused else "not a fused one (no communication kernels of its own)"
    yield Problem(
        path="dispatcher.use_flex_dispatcher",
        message=f"given {'true' if demand else 'false'}, which demands a dispatcher that is "
        f"{'fused' if demand else 'not fused'}; {name!r} is {is_text}.",
        fix="Name another dispatcher, or use null, which demands nothing. The switch selects no dispatcher itself.",
    )


def _dtypes(c: Composition) -> Iterator[Problem]:
    dtype = c.precision.compute
    for part, legal, does in (
        (c.dispatcher, c.dispatcher.traits.wire_dtypes, "sends"),
        (c.compute, c.compute.traits.dtypes, "computes in"),
        (c.sharding, c.sharding.traits.dtypes, "lays out weights of"),
    ):
        if dtype not in legal:
            yield Problem(
                path="train.precision",
                message=f"given {c.recipe.train.precision}; {part.offer.kind} {part.offer.name!r} {does} "
                f"{', '.join(legal)} only.",
                fix=f"Choose one of these, or name another {part.offer.kind}.",
            )


def _pipeline(c: Composition) -> Iterator[Problem]:
    traits, pp, name = c.schedule.traits, c.degrees.pp, c.schedule.offer.name
    if pp > 1 and not traits.pipelines:
        yield Problem(
            path="parallel.pp",
            message=f"given {pp}; schedule {name!r} runs one stage, without a pipeline.",
            fix="Use parallel.pp=1, or name a schedule that pipelines (`moeframe plugins` lists them).",
        )
        return
    if pp < traits.min_ranks:
        yield Problem(
            path="parallel.pp",
            message=f"given {pp}; schedule {name!r} runs on {traits.min_ranks} pipeline ranks or more.",
            fix="Raise parallel.pp, or name a schedule without a pipeline (`moeframe plugins` lists them).",
        )
        return
    yield from _stages(c)


def _stages(c: Composition) -> Iterator[Problem]:
    per_rank, pp, stages = c.schedule.traits.stages_per_rank, c.degrees.pp, c.num_stages
    layers, given = c.recipe.model.num_hidden_layers, c.recipe.parallel.layers_per_stage
    if stages > layers:
        fewest = c.schedule.traits.min_ranks * per_rank
        yield Problem(
            path="parallel.pp",
            message=f"given {pp}; with {per_rank} stage(s) a rank that makes {stages} stages, and the model has "
            f"{layers} layers.",
            fix=f"Use parallel.pp={layers // per_rank} or less."
            if layers >= fewest
            else f"Schedule {c.schedule.offer.name!r} needs {fewest} layers or more; name another one.",
        )
    elif given is not None:
        try:
            split_layers(layers, stages, given)
        except ValueError as error:
            even = ", ".join(str(len(part)) for part in split_layers(layers, stages))
            yield Problem(
                path="parallel.layers_per_stage",
                message=f"given {list(given)}; {error} (pp {pp} x {per_rank} stage(s) a rank of schedule "
                f"{c.schedule.offer.name!r}).",
                fix=f"Use null, which is [{even}], or one number of 1 or more for each stage, {layers} in all.",
            )


def _micro_batches(c: Composition) -> Iterator[Problem]:
    train, name, pp = c.recipe.train, c.schedule.offer.name, c.degrees.pp
    if train.micro_batch_size < 1 or train.global_batch_size % (c.degrees.data_ranks * train.micro_batch_size):
        return
    if pp < c.schedule.traits.min_ranks:
        return
    count, sequences = c.num_micro_batches, train.global_batch_size // c.degrees.data_ranks
    refusal = c.schedule.offer.legal_micro_batches(c.schedule.options, pp, count)
    if refusal is None:
        return
    legal = [
        size
        for size in divisors(sequences)
        if c.schedule.offer.legal_micro_batches(c.schedule.options, pp, sequences // size) is None
    ]
    yield Problem(
        path="train.micro_batch_size",
        message=f"given {train.micro_batch_size}, which makes {count} micro-batch(es) a step (global_batch_size "
        f"{train.global_batch_size} / {c.degrees.data_ranks} data ranks / {train.micro_batch_size}); schedule "
        f"{name!r}: {refusal}",
        fix=f"Use train.micro_batch_size={', '.join(map(str, legal))}, or change train.global_batch_size."
        if legal
        else "Change train.global_batch_size: no train.micro_batch_size is legal with this one.",
    )


def _split_backward(c: Composition) -> Iterator[Problem]:
    if c.schedule.traits.splits_backward and not c.sharding.traits.parameters_stay_whole:
        yield Problem(
            path="sharding.name",
            message=f"{c.sharding.offer.name!r} frees gathered parameters after the forward, but schedule "
            f"{c.schedule.offer.name!r} computes weight gradients later, apart from input gradients.",
            fix=f"Use {whole}, or another schedule."
            if (whole := _keeping_whole(c))
            else "Name a sharding that keeps parameters whole, or another schedule.",
        )


def _phases(c: Composition) -> Iterator[Problem]:
    if not c.schedule.traits.runs_phases:
        return
    name = c.schedule.offer.name
    if not c.sharding.traits.runs_phases:
        yield Problem(
            path="sharding.name",
            message=f"{c.sharding.offer.name!r} runs a model as a whole only, but schedule {name!r} runs the phases of "
            "its layers one by one.",
            fix="Name another sharding, or another schedule.",
        )
    if c.recipe.train.recompute == "full":
        yield Problem(
            path="train.recompute",
            message=f"given full, which gives a layer one backward; schedule {name!r} runs a backward for each phase.",
            fix="Use train.recompute=selective or none, or another schedule.",
        )


def _keeping_whole(c: Composition) -> str:
    """Return the options of the sharding, switched one by one, with which parameters stay whole."""
    part, keeping = c.sharding, []
    switches = {spec.name: getattr(part.options, spec.name) for spec in fields(part.options)}
    for name, value in switches.items():
        if isinstance(value, bool):
            with suppress(ValueError, RecipeError):  # options that the sharding refuses
                if part.offer.traits(replace(part.options, **{name: not value}), c.precision).parameters_stay_whole:
                    keeping.append(f"sharding.options.{name}={'false' if value else 'true'}")
    return " or ".join(keeping)


def _compile(c: Composition) -> Iterator[Problem]:
    if not c.recipe.train.compile:
        return
    compute, traits, given = c.compute.offer.name, c.compute.traits, c.precision.compute
    if given not in traits.compiles_dtypes:
        able = ", ".join(traits.compiles_dtypes) or "no dtype"
        yield Problem(
            path="train.compile",
            message=f"given true, and train.precision computes in {given}; torch.compile can trace compute "
            f"{compute!r} with its options in {able} only.",
            fix="Use train.compile=false, or change train.precision or compute.options.",
        )
    if not c.sharding.traits.supports_compile:
        yield Problem(
            path="train.compile",
            message=f"given true; sharding {c.sharding.offer.name!r} is not known to work on compiled modules.",
            fix="Use train.compile=false, or name another sharding.",
        )
    if c.schedule.traits.splits_backward:
        yield Problem(
            path="train.compile",
            message=f"given true; schedule {c.schedule.offer.name!r} runs weight gradients apart, which crashes in "
            "compiled modules (pytorch issue 161904).",
            fix="Use train.compile=false, or a schedule that does not split the backward.",
        )


def _sharding(c: Composition) -> Iterator[Problem]:
    traits, degrees, name = c.sharding.traits, c.degrees, c.sharding.offer.name
    if degrees.data_ranks < traits.min_data_ranks:
        yield Problem(
            path="sharding.name",
            message=f"{name!r} needs {traits.min_data_ranks} data ranks or more; the recipe has {degrees.data_ranks} "
            f"(world {degrees.world} / pp {degrees.pp}).",
            fix="Launch more processes, or name another sharding.",
        )
    if degrees.pp > 1 and not traits.supports_pipeline:
        yield Problem(
            path="parallel.pp",
            message=f"given {degrees.pp}; sharding {name!r} works without a pipeline only.",
            fix="Use parallel.pp=1, or name another sharding.",
        )
    if degrees.dp_replicate > 1 and not traits.supports_dp_replicate:
        yield Problem(
            path="parallel.dp_replicate",
            message=f"given {degrees.dp_replicate}; sharding {name!r} knows no replicas of its shards.",
            fix="Use parallel.dp_replicate=1, or name a hybrid sharding (`moeframe plugins` lists them).",
        )
    if degrees.dp_replicate == 1 and traits.needs_dp_replicate:
        yield Problem(
            path="parallel.dp_replicate",
            message=f"given 1; sharding {name!r} only makes sense with 2 or more replicas.",
            fix=f"Legal: {', '.join(map(str, legal))}. Or name another sharding."
            if (legal := divisors(degrees.edp)[1:])
            else f"Launch more processes (a multiple of 2 x ep {degrees.ep}), or name another sharding.",
        )


def _vocabulary(c: Composition) -> Iterator[Problem]:
    vocabulary, size = c.data.traits.vocabulary, c.recipe.model.vocab_size
    if vocabulary is not None and vocabulary > size:
        yield Problem(
            path="model.vocab_size",
            message=f"given {size}; data set {c.data.offer.name!r} has {vocabulary} distinct tokens.",
            fix=f"Use {vocabulary} or more, or name another data set.",
        )


def _held_out(c: Composition) -> Iterator[Problem]:
    every = c.recipe.train.eval_every
    if every and not c.data.traits.holds_out:
        yield Problem(
            path="train.eval_every",
            message=f"given {every}; data set {c.data.offer.name!r} with these options holds out nothing to validate.",
            fix="Use 0, or give data.options that hold some data out (`moeframe explain RECIPE data` lists them).",
        )


FIT_RULES: Final[tuple[Callable[[Composition], Iterable[Problem]], ...]] = (
    _dispatcher_group,
    _dispatcher_experts,
    _dispatcher_shapes,
    _capacity,
    _fused_demand,
    _dtypes,
    _pipeline,
    _micro_batches,
    _split_backward,
    _phases,
    _compile,
    _sharding,
    _vocabulary,
    _held_out,
)
