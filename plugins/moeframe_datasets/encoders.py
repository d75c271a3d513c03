"""Texts become tokens: bytes, or through the library of a tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy
import numpy.typing

from moeframe.errors import UserInputError
from moeframe_datasets.options import BYTE
from moeframe_datasets.vocabulary import Vocabulary, require_library

__all__ = ["Encoder", "Tokens", "load_encoder"]

Tokens: TypeAlias = numpy.typing.NDArray[Any]
"""(N,) of some integer type."""


class Encoder(Protocol):
    """A tokenizer at work."""

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each text, without any token that the text does not hold."""
        ...


class _Bytes:
    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        return [numpy.frombuffer(text.encode(), dtype=numpy.uint8) for text in texts]


class _HuggingFace:
    """Through the tokenizers library, on all cores."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from tokenizers import Tokenizer

        path = vocabulary.tokenizer
        try:
            self._tokenizer = Tokenizer.from_file(path)
        except Exception as error:  # the library raises plain Exception
            raise UserInputError(f"{path} cannot be loaded by the tokenizers library: {error}.") from error
        numbered = self._tokenizer.get_vocab()
        if other := [text for text, number in vocabulary.ids.items() if numbered.get(text) != number]:
            text = min(other)
            raise UserInputError(
                f"{path} gives token {text!r} the id {vocabulary.ids[text]}, and the tokenizers library "
                f"{numbered.get(text)}: ids of added tokens must follow those of the model without a gap."
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [numpy.array(encoding.ids, dtype=numpy.int64) for encoding in encodings]


def load_encoder(vocabulary: Vocabulary) -> Encoder:
    """Return the encoder of the tokenizer that has this vocabulary.

    Raises:
        UserInputError: the library is missing, cannot load the file, or numbers its tokens otherwise.
    """
    if vocabulary.tokenizer == BYTE:
        return _Bytes()
    require_library(vocabulary.tokenizer)
    return _HuggingFace(vocabulary)
