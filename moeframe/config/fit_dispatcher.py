"""Whether a dispatcher fits the layout, the model and the batch. Reads traits; knows no backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd, lcm
from typing import TYPE_CHECKING, Final

from moeframe.config.misfit import FitRule, Misfit, counted, one_of, setting
from moeframe.mesh.degrees import divisors, legal_ep

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["DISPATCHER_RULES"]


def _dispatcher_group(c: Composition) -> Iterator[Misfit]:
    traits, ep, experts = c.dispatcher.traits, c.degrees.ep, c.recipe.model.n_routed_experts

    def works(size: int) -> bool:
        if traits.group_sizes is not None:
            return size in traits.group_sizes
        return traits.min_group <= size and (traits.max_group is None or size <= traits.max_group)

    if works(ep):
        return
    if traits.group_sizes is not None:
        rule = f"{one_of(traits.group_sizes)} ranks only"
    elif ep < traits.min_group:
        rule = f"{traits.min_group} ranks or more"
    else:
        rule = f"at most {counted(traits.max_group or 0, 'rank')}"
    possible = [size for size in legal_ep(c.degrees.dp_shard, experts) if works(size)]
    yield Misfit(
        path="parallel.ep",
        message=f"given {ep}; dispatcher {c.dispatcher.offer.name!r} works between {rule}.",
        ways=setting("parallel.ep", possible),
        layouts=[] if possible else [{"ep": size} for size in divisors(experts) if works(size)],
        kinds=("dispatcher",),
        otherwise="Change model.n_routed_experts, which parallel.ep must divide.",
    )


def _local_experts(c: Composition) -> Iterator[Misfit]:
    most, experts, ep = c.dispatcher.traits.max_local_experts, c.recipe.model.n_routed_experts, c.degrees.ep
    if most is None or experts // ep <= most:
        return
    possible = [size for size in legal_ep(c.degrees.dp_shard, experts) if experts // size <= most]
    yield Misfit(
        path="parallel.ep",
        message=f"given {ep}, which leaves {experts // ep} of {experts} experts on each rank; dispatcher "
        f"{c.dispatcher.offer.name!r} takes at most {most}.",
        ways=setting("parallel.ep", possible),
        layouts=[] if possible else [{"ep": size} for size in divisors(experts) if experts // size <= most],
        kinds=("dispatcher",),
    )


def _experts_multiple(c: Composition) -> Iterator[Misfit]:
    model, multiple = c.recipe.model, c.dispatcher.traits.experts_multiple
    if model.n_routed_experts % multiple == 0:
        return
    unit = lcm(multiple, c.degrees.ep, model.n_group)
    yield Misfit(
        path="model.n_routed_experts",
        message=f"given {model.n_routed_experts}; dispatcher {c.dispatcher.offer.name!r} needs a multiple of "
        f"{multiple}.",
        ways=[f"model.n_routed_experts={-(-model.n_routed_experts // unit) * unit}"],
        kinds=("dispatcher",),
    )


def _topk(c: Composition) -> Iterator[Misfit]:
    most, given = c.dispatcher.traits.max_topk, c.recipe.model.num_experts_per_tok
    if most is not None and given > most:
        yield Misfit(
            path="model.num_experts_per_tok",
            message=f"given {given}; dispatcher {c.dispatcher.offer.name!r} sends a token to at most {most} experts.",
            ways=[f"model.num_experts_per_tok={most}{' or less' * (most > 1)}"],
            kinds=("dispatcher",),
        )


def _hidden_size(c: Composition) -> Iterator[Misfit]:
    traits, given, name = c.dispatcher.traits, c.recipe.model.hidden_size, c.dispatcher.offer.name
    multiple, least, most = traits.hidden_multiple, traits.min_hidden, traits.max_hidden
    if given % multiple == 0 and given >= least and (most is None or given <= most):
        return
    if given % multiple:
        rule = f"needs a multiple of {multiple}"
    elif given < least:
        rule = f"sends rows of at least {least}"
    else:
        rule = f"sends rows of at most {most}"
    smallest, largest = -(-least // multiple) * multiple, (most or max(given, least) + multiple) // multiple * multiple
    near = {given // multiple * multiple, -(-given // multiple) * multiple}
    legal = sorted({min(max(size, smallest), largest) for size in near} - {0})
    yield Misfit(
        path="model.hidden_size",
        message=f"given {given}; dispatcher {name!r} {rule}.",
        ways=setting("model.hidden_size", legal),
        kinds=("dispatcher",),
    )


def _token_multiple(c: Composition) -> Iterator[Misfit]:
    train, multiple = c.recipe.train, c.dispatcher.traits.token_multiple
    tokens = train.micro_batch_size * train.seq_len
    if tokens % multiple == 0:
        return
    sizes = divisors(max(1, train.global_batch_size // c.degrees.data_ranks))
    unit = multiple // gcd(multiple, train.micro_batch_size)
    near = [train.seq_len // unit * unit, (train.seq_len // unit + 1) * unit]
    longest = c.recipe.model.max_position_embeddings
    yield Misfit(
        path="train.micro_batch_size",
        message=f"given {train.micro_batch_size}, which is {tokens} tokens of a rank at train.seq_len="
        f"{train.seq_len}; dispatcher {c.dispatcher.offer.name!r} needs a multiple of {multiple}.",
        ways=[
            *setting("train.micro_batch_size", [size for size in sizes if size * train.seq_len % multiple == 0]),
            *setting("train.seq_len", [length for length in near if 0 < length <= longest]),
        ],
        kinds=("dispatcher",),
    )


def _capacity(c: Composition) -> Iterator[Misfit]:
    if c.recipe.model.capacity_factor is not None and not c.dispatcher.traits.supports_capacity_drop:
        yield Misfit(
            path="model.capacity_factor",
            message=f"given {c.recipe.model.capacity_factor}; dispatcher {c.dispatcher.offer.name!r} drops no tokens.",
            ways=["model.capacity_factor=null"],
            kinds=("dispatcher",),
        )


def _fused_demand(c: Composition) -> Iterator[Misfit]:
    demand, fused = c.recipe.dispatcher.use_flex_dispatcher, c.dispatcher.traits.fused
    if demand is None or demand == fused:
        return
    name = c.dispatcher.offer.name
    is_text = "a fused one" if fused else "not a fused one (no communication kernels of its own)"
    yield Misfit(
        path="dispatcher.use_flex_dispatcher",
        message=f"given {'true' if demand else 'false'}, which demands a dispatcher that is "
        f"{'fused' if demand else 'not fused'} and selects none itself; {name!r} is {is_text}.",
        ways=["dispatcher.use_flex_dispatcher=null, which demands nothing"],
        kinds=("dispatcher",),
    )


DISPATCHER_RULES: Final[tuple[FitRule, ...]] = (
    _dispatcher_group,
    _local_experts,
    _experts_multiple,
    _topk,
    _hidden_size,
    _token_multiple,
    _capacity,
    _fused_demand,
)
