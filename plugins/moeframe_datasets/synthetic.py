"""Random tokens, with a routing that benchmarks can prescribe."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy
import numpy.typing

from moeframe.errors import UserInputError
from moeframe.protocols.data import Dataset, DatasetContext, TokenSequence

if TYPE_CHECKING:
    from moeframe_datasets.options import SyntheticOptions

Ids = numpy.typing.NDArray[numpy.int64]


class Synthetic(Dataset):
    """Uniform tokens from (seed, split, index). Forced expert ids are the same in every layer.

    Raises:
        UserInputError: an option is out of range.
    """

    def __init__(self, options: SyntheticOptions, context: DatasetContext) -> None:
        if not 1 <= options.hot_experts <= context.top_k:
            raise UserInputError(
                f"data.options.hot_experts is {options.hot_experts}: it must lie between 1 and "
                f"model.num_experts_per_tok = {context.top_k}, since one token goes to all hot experts."
            )
        if not 0.0 <= options.hot_share <= 1.0:
            raise UserInputError(f"data.options.hot_share is {options.hot_share}: a share lies between 0 and 1.")
        self._options = options
        self._context = context
        self._split = {"train": 0, "validation": 1}[context.split]

    @property
    def num_sequences(self) -> int:
        """As the option says."""
        return self._options.num_sequences

    def sequence(self, index: int) -> TokenSequence:
        """Return sequence `index`."""
        context = self._context
        generator = numpy.random.default_rng([context.seed, self._split, index])
        tokens = generator.integers(0, context.vocab_size, context.seq_len + 1, dtype=numpy.int64)
        routing = self._options.routing
        if routing == "natural":
            return TokenSequence(tokens=tokens)
        ids = self._balanced(index, context.num_experts, context.top_k)
        if routing == "skewed":
            ids = self._skewed(index, ids, generator)
        return TokenSequence(tokens=tokens, expert_ids=ids)

    def _balanced(self, index: int, num_experts: int, top_k: int) -> Ids:
        """Deal experts in turn: (S, K), loads over whole rounds are equal."""
        seq_len = self._context.seq_len
        first = index * seq_len * top_k
        dealt = numpy.arange(first, first + seq_len * top_k, dtype=numpy.int64) % num_experts
        return dealt.reshape(seq_len, top_k)

    def _skewed(self, index: int, ids: Ids, generator: numpy.random.Generator) -> Ids:
        """Send a share of the tokens to every hot expert; their other choices are dealt over the cold ones."""
        hot, experts, top_k = self._options.hot_experts, self._context.num_experts, self._context.top_k
        hit = generator.random(len(ids)) < self._options.hot_share
        skewed = ids.copy()
        skewed[hit, :hot] = numpy.arange(hot)
        if top_k > hot:
            skewed[hit, hot:] = hot + self._balanced(index, experts - hot, top_k - hot)[hit]
        return skewed
