"""A data set that goes wrong on one rank after some sequences, for tests of failures. Used with --plugin."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from typing import Literal

import numpy

from moeframe.hooks import DatasetOffer, hookimpl
from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits, TokenSequence


@dataclass(frozen=True, kw_only=True)
class FaultyOptions:
    fault: Literal["none", "raise", "kill", "term", "interrupt", "exit"] = "none"
    rank: int = 0
    after: int = 8
    sequences: int = 64


class Faulty(Dataset):
    def __init__(self, options: FaultyOptions, context: DatasetContext) -> None:
        self._options = options
        self._context = context
        self._read = 0

    @property
    def num_sequences(self) -> int:
        return self._options.sequences

    def sequence(self, index: int) -> TokenSequence:
        options = self._options
        self._read += 1
        if self._read == options.after + 1 and int(os.environ.get("RANK", "0")) == options.rank:
            if options.fault == "raise":
                raise ValueError("bad batch")
            if options.fault == "exit":
                sys.exit(0)
            number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "interrupt": signal.SIGINT}.get(options.fault)
            if number is not None:
                os.kill(os.getpid(), number)
        generator = numpy.random.default_rng(index)
        return TokenSequence(tokens=generator.integers(0, self._context.vocab_size, self._context.seq_len + 1))


def _traits(options: FaultyOptions, precision: object) -> DatasetTraits:
    return DatasetTraits(vocabulary=None)


@hookimpl
def moeframe_offer_datasets() -> list[DatasetOffer]:
    return [
        DatasetOffer(
            name="faulty", summary="goes wrong on purpose", options=FaultyOptions, build=Faulty, traits=_traits
        )
    ]
