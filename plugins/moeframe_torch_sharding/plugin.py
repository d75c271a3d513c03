"""What this plugin offers. Imports no torch; building a strategy does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeframe.hooks import ShardingOffer, hookimpl
from moeframe.protocols.sharding import ShardingTraits, StateSpread
from moeframe_torch_sharding.options import Fsdp2Options, ReplicateOptions, Zero1Options

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision
    from moeframe.protocols.sharding import Sharding

__all__ = ["moeframe_offer_shardings"]


def _build_replicate(options: ReplicateOptions) -> Sharding:
    from moeframe_torch_sharding.replicate import Replicate

    return Replicate(options)


def _build_zero1(options: Zero1Options) -> Sharding:
    from moeframe_torch_sharding.zero1 import Zero1

    return Zero1(options)


def _build_fsdp2(options: Fsdp2Options) -> Sharding:
    from moeframe_torch_sharding.fsdp2 import Fsdp2

    return Fsdp2(options)


def _build_hsdp(options: Fsdp2Options) -> Sharding:
    from moeframe_torch_sharding.hsdp import Hsdp

    return Hsdp(options)


def _whole_traits(options: ReplicateOptions | Zero1Options, precision: Precision) -> ShardingTraits:  # noqa: ARG001
    return ShardingTraits(parameters_stay_whole=True, runs_phases=True)


def _fsdp2_traits(options: Fsdp2Options, precision: Precision) -> ShardingTraits:  # noqa: ARG001 - same for all dtypes
    return ShardingTraits(parameters_stay_whole=_nothing_freed(options), supports_dp_replicate=False, runs_phases=True)


def _hsdp_traits(options: Fsdp2Options, precision: Precision) -> ShardingTraits:  # noqa: ARG001 - same for all dtypes
    return ShardingTraits(parameters_stay_whole=_nothing_freed(options), needs_dp_replicate=True, runs_phases=True)


def _nothing_freed(options: Fsdp2Options) -> bool:
    return not options.reshard_after_forward and not options.reshards_experts


def _replicate_spread(options: ReplicateOptions) -> StateSpread:  # noqa: ARG001
    return StateSpread(parameters="whole", gradients="whole", optimizer="whole")


def _zero1_spread(options: Zero1Options) -> StateSpread:  # noqa: ARG001
    return StateSpread(parameters="whole", gradients="whole", optimizer="all")


def _fsdp2_spread(options: Fsdp2Options) -> StateSpread:  # noqa: ARG001
    return StateSpread(parameters="replica", gradients="replica", optimizer="replica")


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    """Offer `replicate`, `zero1`, `fsdp2` and `hsdp`."""
    return [
        ShardingOffer(
            name="replicate",
            summary="Whole parameters on every rank; gradients are summed once a step.",
            build=_build_replicate,
            options=ReplicateOptions,
            traits=_whole_traits,
            spread=_replicate_spread,
        ),
        ShardingOffer(
            name="zero1",
            summary="Whole parameters on every rank; optimizer state and the update are sharded over the data ranks.",
            build=_build_zero1,
            options=Zero1Options,
            traits=_whole_traits,
            spread=_zero1_spread,
        ),
        ShardingOffer(
            name="fsdp2",
            summary="Parameters, gradients and optimizer state sharded over the data ranks (torch fully_shard).",
            build=_build_fsdp2,
            options=Fsdp2Options,
            traits=_fsdp2_traits,
            spread=_fsdp2_spread,
        ),
        ShardingOffer(
            name="hsdp",
            summary="As fsdp2 within each of parallel.dp_replicate replicas; gradients are summed between them too.",
            build=_build_hsdp,
            options=Fsdp2Options,
            traits=_hsdp_traits,
            spread=_fsdp2_spread,
        ),
    ]
