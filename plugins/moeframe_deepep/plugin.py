"""Offers the dispatchers that run on DeepEP. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, ToolNeed, hookimpl
from moeframe.protocols.dispatcher import Buffer, BufferRequest, Dispatcher, DispatcherContext, DispatcherTraits
from moeframe.protocols.precision import Precision
from moeframe_deepep.generation import chosen_api
from moeframe_deepep.options import DeepEPOptions, HybridEPOptions
from moeframe_deepep.sizes import buffer_bytes, elastic_bytes, gate_width, hybrid_bytes

__all__ = ["moeframe_offer_dispatchers"]

_INSTALL: Final = "Build it as https://github.com/deepseek-ai/DeepEP says; docs/backends.md names the branches."
_NOT_DEEPEP: Final = {
    "1.0.0": "not DeepEP as its project publishes it, but a source archive without its headers, which cannot be built",
}
_MAX_TOPK: Final = 32


def _build_deepep(options: DeepEPOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_deepep.deepep import DeepEPDispatcher

    return DeepEPDispatcher(options, context)


def _build_hybridep(options: HybridEPOptions, context: DispatcherContext) -> Dispatcher:
    from moeframe_deepep.hybridep import HybridEPDispatcher

    return HybridEPDispatcher(options, context)


def _deepep_traits(options: DeepEPOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001  # same in each
    elastic = chosen_api(options.api) == "elastic"
    return DispatcherTraits(
        fused=True,
        host_syncs_per_layer=1 + int(options.validate),
        # The backward reads the library's handle and the permutation only.
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        max_topk=_MAX_TOPK,
        hidden_multiple=128 if elastic else 16,  # 256 bytes of its combine; 32 bytes of a bulk copy
        # Half of a packed row and 8 bytes must fit in the 8192 bytes of a warp's bulk copy.
        max_hidden=None if elastic else 8176 - gate_width(_MAX_TOPK),
        async_comm=True,
        wire_dtypes=("bfloat16",),
        min_group=2,
        max_group=1024 if elastic else 8,
        group_sizes=None if elastic else (2, 4, 8),
        max_local_experts=256 if elastic else 1024,
    )


def _hybridep_traits(options: HybridEPOptions, precision: Precision) -> DispatcherTraits:  # noqa: ARG001
    return DispatcherTraits(
        fused=True,
        host_syncs_per_layer=1 + int(options.validate),
        # The backward reads the library's handle and the expert ids only.
        keeps_dispatch_input=False,
        keeps_expert_input=False,
        deterministic=True,
        hidden_multiple=16,
        min_hidden=128,  # it allocates a scale for every 128 elements, and cannot share a buffer of none
        async_comm=True,
        wire_dtypes=("bfloat16",),
        min_group=2,
        max_group=72,
        experts_multiple=4,  # local experts x ranks of one NVLink domain
    )


def _deepep_buffers(options: DeepEPOptions, request: BufferRequest) -> tuple[Buffer, ...]:
    if chosen_api(options.api) == "elastic":
        return elastic_bytes(request)
    return buffer_bytes(request, options.num_sms)


def _hybridep_buffers(options: HybridEPOptions, request: BufferRequest) -> tuple[Buffer, ...]:  # noqa: ARG001
    return hybrid_bytes(request)


@hookimpl
def moeframe_offer_dispatchers() -> Sequence[DispatcherOffer]:
    """Offer `deepep` and `hybridep`."""
    return (
        DispatcherOffer(
            name="deepep",
            summary="DeepEP: each token goes once to each rank that needs it, over NVLink, in kernels of its own.",
            build=_build_deepep,
            options=DeepEPOptions,
            traits=_deepep_traits,
            buffers=_deepep_buffers,
            needs=Needs(
                modules=(
                    ModuleNeed(
                        name="deep_ep",
                        install=_INSTALL,
                        distribution="deep-ep",
                        attributes=("Buffer", "ElasticBuffer"),
                        impostors=_NOT_DEEPEP,
                    ),
                ),
                device_kinds=("cuda",),
                compute_capability=(8, 0),
            ),
        ),
        DispatcherOffer(
            name="hybridep",
            summary="HybridEP of DeepEP: the same, and rows arrive grouped by expert; compiles kernels at the start.",
            build=_build_hybridep,
            options=HybridEPOptions,
            traits=_hybridep_traits,
            buffers=_hybridep_buffers,
            needs=Needs(
                modules=(
                    ModuleNeed(
                        name="deep_ep",
                        install=f"{_INSTALL} HybridEP is on the branch hybrid-ep.",
                        distribution="deep-ep",
                        attributes=("HybridEPBuffer",),
                        impostors=_NOT_DEEPEP,
                    ),
                ),
                tools=(
                    ToolNeed(
                        name="nvcc",
                        homes=("CUDA_HOME",),
                        install="HybridEP compiles its kernels when a job starts: install the CUDA toolkit of torch's "
                        "CUDA version and set CUDA_HOME.",
                    ),
                ),
                device_kinds=("cuda",),
                compute_capability=(9, 0),
            ),
        ),
    )
