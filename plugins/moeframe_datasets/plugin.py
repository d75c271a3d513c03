"""Offers the data sets. Imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from moeframe.hooks import DatasetOffer, hookimpl
from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision


@dataclass(frozen=True, kw_only=True)
class PythonSourcesOptions:
    """Options of `python_sources`."""

    validation_every: int = 20
    """Every so many files (in the order of their names) one is held out for validation; at least 2."""


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """Options of `synthetic`."""

    num_sequences: int = 65536
    """Sequences in an epoch."""
    routing: Literal["natural", "balanced", "skewed"] = "natural"
    """natural: the router decides. balanced: every expert gets the same load. skewed: some experts get far more."""
    hot_experts: int = 1
    """Skewed routing: how many experts are hot; at most top-k."""
    hot_share: float = 0.5
    """Skewed routing: the share of tokens that go to all hot experts, 0 to 1."""


def _build_python_sources(options: PythonSourcesOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.python_sources import PythonSources

    return PythonSources(options, context)


def _build_synthetic(options: SyntheticOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.synthetic import Synthetic

    return Synthetic(options, context)


def _python_sources_traits(options: Any, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    return DatasetTraits(vocabulary=256)


def _synthetic_traits(options: SyntheticOptions, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    return DatasetTraits(vocabulary=None, forces_routing=options.routing != "natural")


@hookimpl
def moeframe_offer_datasets() -> Sequence[DatasetOffer]:
    """Offer both data sets."""
    return [
        DatasetOffer(
            name="python_sources",
            summary="the source text of the Python standard library that runs the job, as bytes",
            options=PythonSourcesOptions,
            build=_build_python_sources,
            traits=_python_sources_traits,
        ),
        DatasetOffer(
            name="synthetic",
            summary="random tokens, with natural, balanced or skewed routing; for benchmarks",
            options=SyntheticOptions,
            build=_build_synthetic,
            traits=_synthetic_traits,
        ),
    ]
