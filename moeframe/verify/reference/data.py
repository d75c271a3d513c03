"""Short sequences with everything that has ever made a mean differ from another mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy

from moeframe.protocols.data import Dataset, DatasetContext, TokenSequence
from moeframe.train.data import DataOrder

if TYPE_CHECKING:
    from moeframe.verify.reference.plugin import ReferenceDataOptions

__all__ = ["ReferenceData"]

_DOCUMENTS: Final = 4
"""Every so many sequences, one holds two documents; the targets between them count nowhere."""
_PADDING: Final = (0, 1, 0, 5, 2, 0, 0, 3)
"""Tokens left out at the end of a sequence, by its position in the batch: however ranks and micro-batches share it,
no two have equally many."""


class ReferenceData(Dataset):
    """Random tokens. What a sequence has besides depends on its position in the first epoch, the only one."""

    def __init__(self, options: ReferenceDataOptions, context: DatasetContext) -> None:
        self._options = options
        self._context = context
        order = DataOrder(options.num_sequences, context.seed)
        self._positions = {order.index(position): position for position in range(options.num_sequences)}

    @property
    def num_sequences(self) -> int:
        """As the option says."""
        return self._options.num_sequences

    def sequence(self, index: int) -> TokenSequence:
        """Return sequence `index`."""
        context, width = self._context, self._context.seq_len + 1
        generator = numpy.random.default_rng([context.seed, index])
        position = self._positions[index]
        turn, place = divmod(position, len(_PADDING))
        left_out = _PADDING[place] + (turn % _DOCUMENTS if place == 1 else 0)
        padding = numpy.arange(width) >= width - left_out if self._options.padding and left_out else None
        documents = None
        if position % _DOCUMENTS == 0:
            documents = (numpy.arange(width) >= width // 3).astype(numpy.int64)
        forced = None
        if self._options.forced_routing:
            scores = generator.random((context.seq_len, context.num_experts))
            forced = numpy.argsort(scores, axis=1)[:, : context.top_k].astype(numpy.int64)
        return TokenSequence(
            tokens=generator.integers(0, context.vocab_size, width, dtype=numpy.int64),
            padding=padding,
            expert_ids=forced,
            document_ids=documents,
        )
