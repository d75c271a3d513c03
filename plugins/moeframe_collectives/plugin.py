"""Offers the dispatchers that run on torch's own collectives. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence

from moeframe.hooks import DispatcherOffer, hookimpl
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext, DispatcherTraits
from moeframe.protocols.precision import Precision
from moeframe_collectives.options import AllGatherOptions, AllToAllOptions, LocalOptions

__all__ = ["moeframe_offer_dispatchers"]


def _build_local(options: LocalOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_collectives.local import LocalDispatcher

    return LocalDispatcher(options, context)


def _build_allgather(options: AllGatherOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_collectives.allgather import AllGatherDispatcher

    return AllGatherDispatcher(options, context)


def _build_alltoall(options: AllToAllOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_collectives.alltoall import AllToAllDispatcher

    return AllToAllDispatcher(options, context)


def _local_traits(options: LocalOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001  # same in each
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=int(options.validate),
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        static_shapes=True,
        max_group=1,
    )


def _allgather_traits(options: AllGatherOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1 + int(options.validate),
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        async_comm=True,  # with NCCL; gloo blocks
    )


def _alltoall_traits(options: AllToAllOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001
    return DispatcherTraits(
        fused=False,
        host_syncs_per_layer=1 + int(options.validate) + 2 * int(options.check_splits),
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        async_comm=not options.check_splits,  # with NCCL; gloo blocks
    )


@hookimpl
def moeframe_offer_dispatchers() -> Sequence[DispatcherOffer]:
    """Offer `local`, `allgather` and `alltoall`."""
    return (
        DispatcherOffer(
            name="local",
            summary="All experts on this rank, no communication (ep = 1).",
            build=_build_local,
            options=LocalOptions,
            traits=_local_traits,
        ),
        DispatcherOffer(
            name="allgather",
            summary="Every rank gathers all tokens and computes the rows of its own experts; traffic grows with ep.",
            build=_build_allgather,
            options=AllGatherOptions,
            traits=_allgather_traits,
        ),
        DispatcherOffer(
            name="alltoall",
            summary="One row per (token, expert) through all_to_all; the plain choice on CPU and GPU.",
            build=_build_alltoall,
            options=AllToAllOptions,
            traits=_alltoall_traits,
        ),
    )
