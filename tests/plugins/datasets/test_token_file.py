"""`moeframe tokenize` writes what the data set `token_file` reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from moeframe.errors import JobFailedError, RecipeError, UserInputError
from moeframe.protocols.data import Tokenized, TokenizeRequest
from moeframe.protocols.precision import Precision

FLOAT32 = Precision.of("float32")


@pytest.fixture
def tokenize(offers, tmp_path: Path) -> Callable[..., Tokenized]:
    """Return a function that writes tokens: inputs, changes of the request."""
    (offer,) = [offer for offer in offers.values() if offer.tokenize is not None]
    assert offer.name == "token_file"

    def write(*inputs: Path, **changes: Any) -> Tokenized:
        values = {"inputs": tuple(map(str, inputs)), "out": tmp_path / "tokens", "tokenizer": "byte", **changes}
        assert offer.tokenize is not None
        return offer.tokenize(TokenizeRequest(**values))

    return write


def test_what_is_written_is_read(tokenize, opened, put, tmp_path: Path) -> None:
    written = tokenize(put("a.txt", "abcd"), put("b.jsonl", '{"text": "ef"}\n{"text": "g"}\n'))
    assert (written.documents, written.tokens, written.vocabulary) == (3, 10, 256)
    assert [path.name for path in written.files] == ["tokens.json", "tokens.bin", "tokens.docs.bin"]
    dataset = opened("token_file", {**written.options, "mask_documents": True}, seq_len=9)
    assert dataset.num_sequences == 1
    one = dataset.sequence(0)
    assert bytes(one.tokens.tolist()) == b"abcd\0ef\0g\0"
    assert one.document_ids is not None
    assert one.document_ids.tolist() == [0] * 5 + [1] * 3 + [2] * 2
    assert opened("token_file", written.options, seq_len=9).sequence(0).document_ids is None


def test_the_header_says_which_tokenizer_made_the_tokens(tokenize, put, words: Path, tmp_path: Path) -> None:
    written = tokenize(put("a.txt", "the cat"), tokenizer=str(words), document_separator=6)
    header = json.loads(written.files[0].read_text())
    assert (header["tokenizer"], header["document_separator"], header["vocab_size"]) == ("tokenizer.json", 6, 7)
    assert len(header["tokenizer_sha256"]) == 64
    assert str(tmp_path) not in written.files[0].read_text()
    assert numpy.fromfile(written.files[1], dtype="<u2").tolist() == [1, 2, 6]


def test_the_same_tokens_come_out_of_text_and_of_token_file(tokenize, opened, put, tmp_path: Path) -> None:
    file = put("a.txt", "some words, " * 30)
    direct = opened("text", {"files": (str(file),), "cache_dir": str(tmp_path / "cache")})
    through_a_file = opened("token_file", tokenize(file).options)
    assert direct.num_sequences == through_a_file.num_sequences == 22
    for index in range(22):
        assert numpy.array_equal(direct.sequence(index).tokens, through_a_file.sequence(index).tokens)


def test_files_that_are_there_are_replaced_on_request_only(tokenize, put) -> None:
    first, second = put("a.txt", "first"), put("b.txt", "second")
    written = tokenize(first)
    before = [path.read_bytes() for path in written.files]
    with pytest.raises(UserInputError, match=r"tokens\.json is there already\. Use --force to replace it") as caught:
        tokenize(second)
    assert caught.value.exit_code == 2
    assert [path.read_bytes() for path in written.files] == before
    assert tokenize(second, overwrite=True).tokens == 7


def test_a_refused_input_leaves_the_old_tokens_and_no_other_file(tokenize, put, tmp_path: Path) -> None:
    written = tokenize(put("a.txt", "first"))
    before = {path.name: path.read_bytes() for path in written.files}
    with pytest.raises(UserInputError, match=r"bad\.txt: byte 1"):
        tokenize(put("bad.txt", b"x\xff"), overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("tokens*")} == before
    assert not list(tmp_path.glob(".*"))


def test_a_place_that_cannot_be_written_is_refused_and_a_full_disk_fails(tokenize, put, tmp_path, monkeypatch) -> None:
    file = put("a.txt", "x")
    with pytest.raises(
        UserInputError, match=r"a\.txt/deep cannot be written \(.*\)\. Make it writable, or use another"
    ):
        tokenize(file, out=file / "deep" / "tokens")

    def full(*arguments: object, **options: object) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("moeframe_datasets.writer.TokenWriter.add", full)
    with pytest.raises(JobFailedError, match="No space left on device"):
        tokenize(file)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".", "tokens"))]


def test_the_last_share_or_another_file_is_held_out(tokenize, opened, offers, put, tmp_path: Path) -> None:
    name = tokenize(put("a.txt", "abcdefghij"), document_separator=None).options["path"]
    other = tokenize(put("b.txt", "ABC"), out=tmp_path / "other").options["path"]
    offer = offers["token_file"]
    for options, train, held_out in (
        ({}, 10, 0),
        ({"validation_fraction": 0.4}, 6, 4),
        ({"validation_path": other}, 10, 4),
    ):
        for split, tokens in (("train", train), ("validation", held_out)):
            dataset = opened("token_file", {"path": name, **options}, seq_len=1, split=split)
            assert dataset.num_sequences == max(0, tokens - 1)
        assert offer.traits(offer.options(path=name, **options), FLOAT32).holds_out == bool(options)


def test_check_reads_the_headers_and_refuses_what_is_wrong(tokenize, offers, put, words: Path, tmp_path: Path) -> None:
    name = tokenize(put("a.txt", "abc"), document_separator=256).options["path"]
    other = tokenize(put("b.txt", "the"), out=tmp_path / "w", tokenizer=str(words), document_separator=None)
    offer = offers["token_file"]
    assert offer.traits(offer.options(path=name), FLOAT32).vocabulary == 257
    for options, message in (
        ({}, "data.options.path: missing. Give the NAME of `moeframe tokenize"),
        ({"path": f"{tmp_path}/gone"}, f"data.options.path: {tmp_path}/gone.json does not exist."),
        ({"path": name, "validation_path": "gone"}, "data.options.validation_path: gone.json does not exist."),
        ({"path": name, "validation_fraction": 1.5}, "data.options.validation_fraction: given 1.5; a share"),
        (
            {"path": name, "validation_path": other.options["path"]},
            "data.options.validation_path: its tokens were made by another tokenizer (tokenizer.json, sha256 ",
        ),
        (
            {"path": name, "validation_path": name, "validation_fraction": 0.1},
            "data.options.validation_fraction: given beside validation_path",
        ),
    ):
        with pytest.raises(RecipeError) as caught:
            offer.traits(offer.options(**options), FLOAT32)
        assert str(caught.value).startswith(message)
    Path(f"{name}.bin").write_bytes(b"x")
    with pytest.raises(
        RecipeError, match=r"data\.options\.path: .*tokens\.bin has 1 bytes, and tokens\.json says 8 \(4"
    ):
        offer.traits(offer.options(path=name), FLOAT32)


def test_large_files_are_verified_on_request(tokenize, opened, put, monkeypatch) -> None:
    monkeypatch.setattr("moeframe_datasets.store.VERIFIED_BYTES", 0)
    written = tokenize(put("a.txt", "abcdefgh" * 9))
    tokens = written.files[1]
    tokens.write_bytes(b"x" + tokens.read_bytes()[1:])
    assert opened("token_file", written.options).num_sequences == 4
    with pytest.raises(RecipeError, match=r"tokens\.bin has the checksum"):
        opened("token_file", {**written.options, "verify": True})


def test_long_inputs_are_tokenized_in_batches_with_progress(tokenize, put, monkeypatch, capsys) -> None:
    monkeypatch.setattr("moeframe_datasets.meter._QUIET_S", -1.0)
    monkeypatch.setattr("moeframe_datasets.meter._EVERY_LOG_S", 0.0)
    monkeypatch.setattr("moeframe_datasets.tokenizing._BATCH_TEXTS", 3)
    lines = "".join(json.dumps({"text": "x" * length}) + "\n" for length in range(1, 11))
    assert tokenize(put("a.jsonl", lines), put("b.txt", "yy"), document_separator=None).tokens == 57
    shown = capsys.readouterr().err.splitlines()
    assert len(shown) == 11
    assert shown[-1].startswith("tokenizing: 100% of 0.0 MB")
