from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from moeframe_datasets import vocabulary
from moeframe_datasets.encoders import load_encoder
from moeframe_datasets.vocabulary import read_vocabulary, require_library, separator_id

from moeframe.errors import UserInputError


def test_bytes_are_256_tokens() -> None:
    assert read_vocabulary("byte").size == 256
    assert read_vocabulary("byte").name == "byte"


def test_a_vocabulary_is_as_large_as_its_largest_id(words: Path) -> None:
    found = read_vocabulary(str(words))
    assert found.size == 7
    assert found.ids["<end>"] == 6
    assert found.special == ("<end>",)
    assert found.name == "tokenizer.json"


def test_ids_may_have_gaps(put) -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 41}}
    assert read_vocabulary(str(put("t.json", json.dumps({"model": model})))).size == 42


def test_a_unigram_vocabulary_is_a_list_of_scores(put) -> None:
    model = {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.5], ["b", -2.0]]}
    assert read_vocabulary(str(put("t.json", json.dumps({"model": model})))).size == 3


@pytest.mark.parametrize("content", ['{"model": {}}', "[]", '{"model": {"vocab": {}}}', '{"vocab": {"a": 1}}'])
def test_another_json_file_is_no_tokenizer(put, content: str) -> None:
    path = put("t.json", content)
    with pytest.raises(UserInputError, match=re.escape(f"{path} is no tokenizer.json of the Hugging Face")):
        read_vocabulary(str(path))


def test_a_tokenizer_that_cannot_be_read_is_refused(put, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "gone.json", "cannot be read (No such file or directory). Use `byte`"),
        (tmp_path, "is a folder. Name the tokenizer.json in it."),
        (put("t.json", b"\x00\xff"), "is no tokenizer.json: it is no JSON"),
        (put("u.json", "{"), "is no tokenizer.json: it is no JSON"),
    ):
        with pytest.raises(UserInputError, match=re.escape(f"{path} {message}")):
            read_vocabulary(str(path))


def test_a_missing_library_is_named_with_the_line_that_installs_it(words: Path, monkeypatch) -> None:
    monkeypatch.setattr(vocabulary, "find_spec", lambda name: None)
    with pytest.raises(UserInputError, match=r"Run: pip install 'moeframe\[hf\]'"):
        require_library(str(words))
    known = read_vocabulary(str(words))
    with pytest.raises(UserInputError, match="tokenizers"):
        load_encoder(known)
    require_library("byte")


def test_the_separator_is_an_id_or_the_text_of_a_token(words: Path) -> None:
    known = read_vocabulary(str(words))
    assert separator_id("<end>", known) == separator_id(6, known) == 6
    assert separator_id("cat", known) == 2
    assert separator_id(None, known) is None
    byte = read_vocabulary("byte")
    assert separator_id("auto", byte) == 0
    assert separator_id(256, byte) == 256


def test_a_separator_that_is_no_token_is_refused_with_those_that_could_be_meant(words: Path) -> None:
    known, byte = read_vocabulary(str(words)), read_vocabulary("byte")
    for given, of, message in (
        ("auto", known, "it must be given with a tokenizer.json. Name the token that ends a document"),
        ("<eos>", known, "'<eos>' is no token of tokenizer.json."),
        (7, known, "7 is no token of tokenizer.json, whose ids are 0 to 6."),
        (-1, known, "-1 is no token"),
        (257, byte, "257 is no token of byte, whose ids are 0 to 256."),
        ("<end>", byte, "'<end>' is no token of `byte`."),
    ):
        with pytest.raises(UserInputError, match=re.escape(message)):
            separator_id(given, of)
    with pytest.raises(UserInputError, match=re.escape("special tokens of tokenizer.json: '<end>'")):
        separator_id("auto", known)


def test_the_library_agrees_with_what_was_read_without_it(words: Path) -> None:
    assert importlib.util.find_spec("tokenizers") is not None
    from tokenizers import Tokenizer

    assert Tokenizer.from_file(str(words)).get_vocab() == dict(read_vocabulary(str(words)).ids)
