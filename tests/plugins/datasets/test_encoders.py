from __future__ import annotations

import re
from pathlib import Path

import pytest
from moeframe_datasets.encoders import load_encoder
from moeframe_datasets.vocabulary import read_vocabulary

from moeframe.errors import UserInputError


def test_byte_tokens_are_the_bytes_of_the_text() -> None:
    first, second = load_encoder(read_vocabulary("byte")).encode(["aé", ""])
    assert first.tolist() == [97, 0xC3, 0xA9]
    assert second.tolist() == []


def test_a_tokenizer_file_adds_no_token_and_cuts_nothing_off(words: Path) -> None:
    """The file says: at most 2 tokens, and <end> before each text."""
    tokens = load_encoder(read_vocabulary(str(words))).encode(["the cat sat on the mat", "dog", ""])
    assert [list(one) for one in tokens] == [[1, 2, 3, 5, 1, 4], [0], []]


def test_a_token_of_its_own_in_the_text_is_that_token(words: Path) -> None:
    (tokens,) = load_encoder(read_vocabulary(str(words))).encode(["the cat<end>the"])
    assert tokens.tolist() == [1, 2, 6, 1]


def test_a_file_that_the_library_cannot_load_is_refused(put) -> None:
    path = put("t.json", '{"model": {"type": "WordLevel", "vocab": {"a": 0}}}')
    vocabulary = read_vocabulary(str(path))
    with pytest.raises(UserInputError, match=re.escape(f"{path} cannot be loaded by the tokenizers library")):
        load_encoder(vocabulary)


def test_a_file_whose_tokens_the_library_numbers_otherwise_is_refused(put, words: Path) -> None:
    """The library counts added tokens on from those of the model, whatever id the file gives them."""
    path = put("t.json", words.read_text().replace('"id": 6', '"id": 9'))
    vocabulary = read_vocabulary(str(path))
    with pytest.raises(UserInputError, match="gives token '<end>' the id 9, and the tokenizers library 6"):
        load_encoder(vocabulary)
