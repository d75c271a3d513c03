"""Offers the data sets. Imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moeframe.hooks import DatasetOffer, hookimpl
from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits, Tokenized, TokenizeRequest
from moeframe_datasets.options import PythonSourcesOptions, SyntheticOptions, TextOptions, TokenFileOptions

if TYPE_CHECKING:
    from moeframe.protocols.precision import Precision


def _build_python_sources(options: PythonSourcesOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.python_sources import PythonSources

    return PythonSources(options, context)


def _build_synthetic(options: SyntheticOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.synthetic import Synthetic

    return Synthetic(options, context)


def _build_text(options: TextOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.text import open_text

    return open_text(options, context)


def _build_token_file(options: TokenFileOptions, context: DatasetContext) -> Dataset:
    from moeframe_datasets.token_file import open_token_file

    return open_token_file(options, context)


def _python_sources_traits(options: Any, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    return DatasetTraits(vocabulary=256)


def _synthetic_traits(options: SyntheticOptions, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    return DatasetTraits(vocabulary=None, forces_routing=options.routing != "natural")


def _text_traits(options: TextOptions, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    from moeframe_datasets.text import text_traits

    return text_traits(options)


def _token_file_traits(options: TokenFileOptions, precision: Precision) -> DatasetTraits:  # noqa: ARG001
    from moeframe_datasets.token_file import token_file_traits

    return token_file_traits(options)


def _tokenize(request: TokenizeRequest) -> Tokenized:
    from moeframe_datasets.tokenizing import tokenize

    return tokenize(request)


@hookimpl
def moeframe_offer_datasets() -> Sequence[DatasetOffer]:
    """Offer the data sets."""
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
        DatasetOffer(
            name="text",
            summary="your own text files or JSON lines, tokenized once and kept",
            options=TextOptions,
            build=_build_text,
            traits=_text_traits,
        ),
        DatasetOffer(
            name="token_file",
            summary="tokens that `moeframe tokenize` has written, memory-mapped",
            options=TokenFileOptions,
            build=_build_token_file,
            traits=_token_file_traits,
            tokenize=_tokenize,
        ),
    ]
