"""What this plugin offers. Imports no torch; building a strategy does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeframe.hooks import ShardingOffer, hookimpl
from moeframe.protocols.sharding import ShardingTraits
from moeframe_torch_sharding.options import Fsdp2Options, ReplicateOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision
    from moeframe.protocols.sharding import Sharding

__all__ = ["moeframe_offer_shardings"]


def _build_replicate(options: ReplicateOptions) -> Sharding:
    from moeframe_torch_sharding.replicate import Replicate

    return Replicate(options)


def _build_fsdp2(options: Fsdp2Options) -> Sharding:
    from moeframe_torch_sharding.fsdp2 import Fsdp2

    return Fsdp2(options)


def _replicate_traits(options: ReplicateOptions, precision: Precision) -> ShardingTraits:  # noqa: ARG001 - same for all
    return ShardingTraits(parameters_stay_whole=True)


def _fsdp2_traits(options: Fsdp2Options, precision: Precision) -> ShardingTraits:  # noqa: ARG001 - same for all dtypes
    return ShardingTraits(
        parameters_stay_whole=not options.reshard_after_forward and not options.reshards_experts,
        supports_dp_replicate=False,
    )


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    """Offer `replicate` and `fsdp2`."""
    return [
        ShardingOffer(
            name="replicate",
            summary="Whole parameters on every rank; gradients are summed once a step.",
            build=_build_replicate,
            options=ReplicateOptions,
            traits=_replicate_traits,
        ),
        ShardingOffer(
            name="fsdp2",
            summary="Parameters, gradients and optimizer state sharded over the data ranks (torch fully_shard).",
            build=_build_fsdp2,
            options=Fsdp2Options,
            traits=_fsdp2_traits,
        ),
    ]
