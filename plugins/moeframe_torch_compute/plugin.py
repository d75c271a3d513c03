"""Offers the compute backend `torch`. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moeframe.hooks import ComputeOffer, hookimpl
from moeframe.protocols.compute import Compute, ComputeContext, ComputeTraits
from moeframe_torch_compute.options import TorchComputeOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision


def _build(options: TorchComputeOptions, context: ComputeContext) -> Compute:
    from moeframe_torch_compute.compute import TorchCompute

    return TorchCompute(options, context)


def _traits(options: TorchComputeOptions, precision: Precision) -> ComputeTraits:  # noqa: ARG001
    # torch traces grouped_mm in bfloat16 only, and a loop over experts reads its counts on the host.
    traceable = () if options.grouped_mm == "never" else ("bfloat16",)
    return ComputeTraits(
        saves_expert_input=True,
        splits_expert_backward=True,
        saves_expert_output=False,
        saves_norm_output=False,
        compiles_dtypes=traceable,
    )


@hookimpl
def moeframe_offer_computes() -> Sequence[ComputeOffer]:
    """Offer the backend that needs nothing but torch."""
    return [
        ComputeOffer(
            name="torch",
            summary="torch's own kernels: grouped_mm for the experts, SDPA for attention",
            build=_build,
            traits=_traits,
            options=TorchComputeOptions,
        )
    ]
