"""What this plugin offers. Imports no torch; building a strategy does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeframe.hooks import ModuleNeed, Needs, ShardingOffer, hookimpl
from moeframe.protocols.sharding import ShardingTraits, StateSpread
from moeframe_megatron_fsdp.options import MegatronFsdpOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision
    from moeframe.protocols.sharding import Sharding

__all__ = ["moeframe_offer_shardings"]


def _build(options: MegatronFsdpOptions) -> Sharding:
    from moeframe_megatron_fsdp.strategy import MegatronFsdp

    return MegatronFsdp(options)


def _traits(options: MegatronFsdpOptions, precision: Precision) -> ShardingTraits:  # noqa: ARG001 - same for all dtypes
    options.require_legal()
    return ShardingTraits(
        parameters_stay_whole=options.zero < 3,
        min_data_ranks=2,
        device_kinds=("cuda",),
        dtypes=("float32", "bfloat16"),
        supports_pipeline=False,
        supports_compile=False,
    )


def _spread(options: MegatronFsdpOptions) -> StateSpread:
    return StateSpread(
        parameters="replica" if options.zero == 3 else "whole",
        gradients="replica" if options.zero > 1 else "whole",
        optimizer="replica",
    )


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    """Offer `megatron_fsdp`."""
    return [
        ShardingOffer(
            name="megatron_fsdp",
            summary="ZeRO-1, 2 or 3 by the package megatron-fsdp, experts over their replicas. CUDA only.",
            build=_build,
            options=MegatronFsdpOptions,
            traits=_traits,
            spread=_spread,
            needs=Needs(
                modules=(
                    ModuleNeed(
                        name="megatron_fsdp",
                        install="Install `moeframe[megatron-fsdp]` (megatron-fsdp>=0.6.1) as docs/backends.md says.",
                        distribution="megatron-fsdp",
                        version=">=0.6.1",
                    ),
                ),
                device_kinds=("cuda",),
                # The package takes classes of Megatron-Core in place of its own, and kernels of Transformer Engine.
                notices=("megatron-core", "transformer-engine"),
            ),
        )
    ]
