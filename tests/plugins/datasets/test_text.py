"""The data set `text`, from options to sequences."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from moeframe_datasets import vocabulary

from moeframe.errors import RecipeError
from moeframe.protocols.data import Dataset, DatasetTraits
from moeframe.protocols.precision import Precision

FLOAT32 = Precision.of("float32")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def traits(offers) -> Callable[..., DatasetTraits]:
    """Return a function: options -> traits of `text`, as `moeframe check` asks for them."""

    def ask(**options: Any) -> DatasetTraits:
        found: DatasetTraits = offers["text"].traits(offers["text"].options(**options), FLOAT32)
        return found

    return ask


def stream(dataset: Dataset) -> bytes:
    """Return the inputs of all sequences, one after the other."""
    return b"".join(bytes(dataset.sequence(index).tokens[:-1].tolist()) for index in range(dataset.num_sequences))


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(RecipeError) as caught:
        call(*arguments, **options)
    assert caught.value.exit_code == 2
    (problem,) = caught.value.problems
    return str(problem)


def test_sequences_are_windows_of_all_files_that_overlap_by_one_token(opened, put, tmp_path: Path) -> None:
    put("b.txt", "klmno")
    put("a.txt", "abcdefghij")
    dataset = opened("text", {"files": (f"{tmp_path}/*.txt",)}, seq_len=4)
    assert dataset.num_sequences == 4
    assert [bytes(dataset.sequence(index).tokens.tolist()) for index in range(4)] == [
        b"abcde", b"efghi", b"ij\0kl", b"lmno\0"
    ]  # fmt: skip
    assert dataset.sequence(2).tokens.dtype == numpy.int64
    assert dataset.sequence(2).document_ids is None


def test_documents_are_told_apart_on_request(opened, put, tmp_path: Path) -> None:
    put("a.jsonl", '{"text": "abc"}\n{"text": "d"}\n{"text": "efghi"}\n')
    dataset = opened("text", {"files": (f"{tmp_path}/a.jsonl",), "mask_documents": True}, seq_len=8)
    one = dataset.sequence(0)
    assert bytes(one.tokens.tolist()) == b"abc\0d\0efg"
    assert one.document_ids is not None
    assert one.document_ids.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]


def test_another_order_of_reading_changes_no_sequence(opened, put, tmp_path: Path) -> None:
    put("a.txt", "some text " * 40)
    options = {"files": (f"{tmp_path}/a.txt",), "mask_documents": True}
    forwards, backwards = opened("text", options), opened("text", options, local_rank=3)
    expected = [forwards.sequence(index).tokens.tolist() for index in range(20)]
    assert [backwards.sequence(index).tokens.tolist() for index in reversed(range(20))] == expected[::-1]


def test_a_tokenizer_file_makes_the_tokens(opened, put, words: Path, tmp_path: Path) -> None:
    put("a.txt", "the cat sat on the mat")
    options = {"files": (f"{tmp_path}/a.txt",), "tokenizer": str(words), "document_separator": "<end>"}
    assert opened("text", options, seq_len=6).sequence(0).tokens.tolist() == [1, 2, 3, 5, 1, 4, 6]


def test_other_files_are_held_out(opened, put, tmp_path: Path) -> None:
    put("train.txt", "abcdefgh")
    put("held.txt", "ABCDEFGH")
    options = {"files": (f"{tmp_path}/train.txt",), "validation_files": (f"{tmp_path}/held.txt",)}
    assert stream(opened("text", options, seq_len=4)) == b"abcdefgh"
    assert stream(opened("text", options, seq_len=4, split="validation")) == b"ABCDEFGH"


def test_every_so_many_documents_one_is_held_out(opened, put, tmp_path: Path) -> None:
    put("a.jsonl", "".join(f'{{"text": "{letter * 3}"}}\n' for letter in "abcdef"))
    options = {"files": (f"{tmp_path}/a.jsonl",), "validation_every": 3, "document_separator": None}
    assert stream(opened("text", options, seq_len=1)) == b"aaabbbdddee"
    assert stream(opened("text", options, seq_len=1, split="validation")) == b"cccff"


def test_the_last_share_is_held_out(opened, put, tmp_path: Path) -> None:
    put("a.txt", "abcdefghij")
    options = {"files": (f"{tmp_path}/a.txt",), "validation_fraction": 0.3, "document_separator": None}
    assert stream(opened("text", options, seq_len=2)) == b"abcdef"
    assert stream(opened("text", options, seq_len=2, split="validation")) == b"hi"


def test_nothing_is_held_out_unless_asked_for(opened, traits, put, tmp_path: Path) -> None:
    files = (f"{put('a.txt', 'abcdefghij')}",)
    assert opened("text", {"files": files}, seq_len=2, split="validation").num_sequences == 0
    assert not traits(files=files).holds_out
    for options in ({"validation_every": 2}, {"validation_fraction": 0.5}, {"validation_files": files}):
        assert traits(files=files, **options).holds_out


def test_less_than_a_sequence_is_no_sequence(opened, put) -> None:
    files = (str(put("a.txt", "abc")),)
    assert opened("text", {"files": files}, seq_len=4).num_sequences == 0
    assert opened("text", {"files": files}, seq_len=3).num_sequences == 1


def test_the_folder_of_the_cache_is_an_option(opened, put, tmp_path: Path) -> None:
    opened("text", {"files": (str(put("a.txt", "abc")),), "cache_dir": str(tmp_path / "here")})
    assert (tmp_path / "here" / "seen").is_dir()
    assert not (tmp_path / "cache").exists()


def test_the_vocabulary_is_known_before_a_text_is_read(traits, put, words: Path) -> None:
    files = (str(put("a.txt", b"\xff")),)
    assert traits(files=files).vocabulary == 256
    assert traits(files=files, document_separator=256).vocabulary == 257
    assert traits(files=files, tokenizer=str(words), document_separator=None).vocabulary == 7


def test_wrong_options_are_refused_by_check_with_the_way_out(traits, put, tmp_path: Path, words: Path) -> None:
    files = (str(put("a.txt", "x")),)
    gone = f"{tmp_path}/*.text"
    for options, message in (
        ({}, "data.options.files: missing. Name files or patterns"),
        ({"files": (gone,)}, f"data.options.files.0: {gone} matches no file."),
        ({"files": files, "validation_files": (gone,)}, f"data.options.validation_files.0: {gone} matches no file."),
        ({"files": files, "validation_every": 1}, "data.options.validation_every: given 1; one document in so many"),
        ({"files": files, "validation_fraction": 1.0}, "data.options.validation_fraction: given 1.0; a share that"),
        (
            {"files": files, "validation_every": 2, "validation_files": files},
            "data.options.validation_every: given beside validation_files; there is one way to hold data out.",
        ),
        ({"files": files, "tokenizer": gone}, f"data.options.tokenizer: {gone} cannot be read"),
        ({"files": files, "document_separator": 999}, "data.options.document_separator: 999 is no token of byte"),
        ({"files": files, "tokenizer": str(words)}, "data.options.document_separator: it must be given with"),
    ):  # fmt: skip
        assert refusal(traits, **options).startswith(message)


def test_a_missing_library_is_refused_by_check(traits, put, words: Path, monkeypatch) -> None:
    monkeypatch.setattr(vocabulary, "find_spec", lambda name: None)
    text = refusal(traits, files=(str(put("a.txt", "x")),), tokenizer=str(words), document_separator=None)
    assert text.startswith("data.options.tokenizer:")
    assert "pip install 'moeframe[hf]'" in text


def test_bad_texts_are_refused_with_option_file_and_place(opened, put, tmp_path: Path) -> None:
    good = str(put("good.txt", "x"))
    for name, content, message in (
        ("a.txt", b"abc\xff", "a.txt: byte 3 (0xff) is not UTF-8"),
        ("b.jsonl", b'{"text": "x"}\n{"body": "x"}\n', "b.jsonl:2: the line has no field 'text'; its fields: 'body'."),
        ("c.txt", b"", "c.txt holds no text: nothing is left to train on."),
    ):
        path = str(put(name, content))
        assert refusal(opened, "text", {"files": (path,)}).startswith(f"data.options.files: {tmp_path}/{message}")
        options = {"files": (good,), "validation_files": (path,)}
        assert refusal(opened, "text", options, split="validation").startswith("data.options.validation_files: ")
    replaced = opened("text", {"files": (f"{tmp_path}/a.txt",), "errors": "replace"}, seq_len=5)
    assert bytes(replaced.sequence(0).tokens.tolist()) == "abc\ufffd".encode()


def test_other_fields_of_json_lines_can_hold_the_text(opened, put) -> None:
    path = str(put("b.jsonl", '{"body": "abcd"}\n'))
    assert stream(opened("text", {"files": (path,), "field": "body"}, seq_len=4)) == b"abcd"


def test_options_are_checked_when_the_data_is_opened_too(opened) -> None:
    assert refusal(opened, "text").startswith("data.options.files: missing")
    assert refusal(opened, "token_file").startswith("data.options.path: missing")
    assert re.match(
        r"data\.options\.validation_fraction", refusal(opened, "token_file", {"path": "x", "validation_fraction": -1})
    )
