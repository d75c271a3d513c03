"""A dispatcher and a sharding that no machine of the tests can use. Used with --plugin."""

from __future__ import annotations

import os
from dataclasses import dataclass

from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, ShardingOffer, hookimpl
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.sharding import ShardingTraits


@dataclass(frozen=True, kw_only=True)
class ElsewhereOptions:
    channels: int = 8


def _build(*_: object) -> None:
    raise AssertionError("nobody may build this")


def _traits(options: ElsewhereOptions, precision: object) -> DispatcherTraits:
    if options.channels < 1:
        raise ValueError(f"channels is {options.channels}; it must be 1 or more.")
    return DispatcherTraits(
        fused=True, host_syncs_per_layer=0, keeps_dispatch_input=False, keeps_expert_input=False, deterministic=True
    )


def _sharding_traits(options: object, precision: object) -> ShardingTraits:
    return ShardingTraits(parameters_stay_whole=True)


def _needs() -> Needs:
    """What cannot be had; on ranks that ELSEWHERE_HERE names there is nothing to need."""
    if os.environ.get("RANK", "none") in os.environ.get("ELSEWHERE_HERE", "").split(","):
        return Needs()
    return Needs(modules=(ModuleNeed(name="no_such_module", install="It cannot be had."),))


@hookimpl
def moeframe_offer_dispatchers() -> list[DispatcherOffer]:
    return [
        DispatcherOffer(
            name="elsewhere",
            summary="runs elsewhere",
            options=ElsewhereOptions,
            build=_build,
            traits=_traits,
            needs=_needs(),
        )
    ]


@hookimpl
def moeframe_offer_shardings() -> list[ShardingOffer]:
    gpus = Needs(device_kinds=("cuda",))
    return [
        ShardingOffer(name="on_gpus", summary="needs GPUs", build=_build, traits=_sharding_traits, needs=gpus),
        ShardingOffer(name="gone", summary="needs a module", build=_build, traits=_sharding_traits, needs=_needs()),
    ]
