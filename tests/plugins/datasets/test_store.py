"""Tokens on disk: what is written is read back, and what is damaged is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy
import pytest
from moeframe_datasets import store as store_module
from moeframe_datasets.header import Paths, read_header
from moeframe_datasets.store import TokenStore
from moeframe_datasets.vocabulary import Vocabulary, read_vocabulary
from moeframe_datasets.writer import TokenWriter

from moeframe.errors import ContractError, UserInputError

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12]]


def write(name: Path, documents: list[list[int]], size: int = 256, separator: int | None = None) -> None:
    with TokenWriter.open(name, Vocabulary(tokenizer="byte", size=size), separator) as writer:
        for document in documents:
            writer.add(numpy.array(document, dtype=numpy.int64), ends_document=True)
        writer.publish()


@pytest.fixture
def name(tmp_path: Path) -> Path:
    write(tmp_path / "c4.v1", DOCUMENTS)
    return tmp_path / "c4.v1"


def refusal(name: Path, *, verify: bool = False) -> str:
    with pytest.raises(UserInputError) as caught:
        TokenStore(name, verify=verify)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_tokens_and_documents_are_read_back(name: Path) -> None:
    store = TokenStore(name)
    assert len(store) == 8
    assert store.tokens(0, 8).tolist() == [5, 6, 7, 8, 9, 10, 11, 12]
    assert store.tokens(0, 8).dtype == numpy.int64
    assert store.document_ids(0, 8).tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert [store.document_ids(start, start + 3).tolist() for start in range(4)] == [
        [0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 1, 1]
    ]  # fmt: skip


def test_a_document_may_come_in_pieces_and_one_without_tokens_leaves_no_trace(tmp_path: Path) -> None:
    with TokenWriter.open(tmp_path / "a", Vocabulary(tokenizer="byte", size=256), 1) as writer:
        ended = [
            writer.add(numpy.array(tokens, dtype=numpy.int64), ends_document=ends)
            for tokens, ends in (([5], False), ([], False), ([6], True), ([], True), ([7], False), ([], True))
        ]
        writer.publish()
    assert ended == [False, False, True, False, False, True]
    store = TokenStore(tmp_path / "a")
    assert store.tokens(0, 5).tolist() == [5, 6, 1, 7, 1]  # 1 ends each document, and belongs to it
    assert store.document_ids(0, 5).tolist() == [0, 0, 0, 1, 1]
    assert store.header.num_documents == 2


@pytest.mark.parametrize(("size", "dtype", "width"), [(65536, "uint16", 2), (65537, "uint32", 4)])
def test_a_token_takes_two_bytes_where_that_is_enough(tmp_path: Path, size: int, dtype: str, width: int) -> None:
    write(tmp_path / "a", [[0, size - 1]], size)
    store = TokenStore(tmp_path / "a")
    assert store.header.dtype == dtype
    assert store.paths.tokens.stat().st_size == 2 * width
    assert store.tokens(0, 2).tolist() == [0, size - 1]
    assert int.from_bytes(store.paths.tokens.read_bytes()[width:], "little") == size - 1


def test_a_separator_beyond_the_bytes_makes_the_vocabulary_larger(tmp_path: Path) -> None:
    write(tmp_path / "a", [[1]], separator=256)
    assert TokenStore(tmp_path / "a").header.vocab_size == 257


def test_no_tokens_are_a_store_too(tmp_path: Path) -> None:
    write(tmp_path / "a", [])
    assert len(TokenStore(tmp_path / "a")) == 0


def test_any_of_the_three_files_stands_for_the_name(name: Path) -> None:
    assert {Paths.of(f"{name}{suffix}").name for suffix in ("", ".json", ".bin", ".docs.bin")} == {name}


def test_a_writer_that_does_not_finish_leaves_nothing(tmp_path: Path) -> None:
    with TokenWriter.open(tmp_path / "a", read_vocabulary("byte"), None) as writer:
        writer.add(numpy.array([1]), ends_document=True)
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


def test_the_files_are_the_three_of_the_format_and_no_other(name: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c4.v1.bin", "c4.v1.docs.bin", "c4.v1.json"]
    header = json.loads(Path(f"{name}.json").read_text())
    assert (header["format"], header["version"], header["num_tokens"], header["num_documents"]) == (
        "moeframe-tokens", 1, 8, 3
    )  # fmt: skip
    assert numpy.fromfile(f"{name}.docs.bin", dtype="<i8").tolist() == [0, 3, 4]


def test_a_token_beyond_the_vocabulary_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match=r"made token 300, but its file says that all are below 256"):
        write(tmp_path / "a", [[300]])


def test_a_truncated_file_is_refused_with_both_sizes(name: Path) -> None:
    for suffix, have, says in ((".bin", 14, "16 (8 tokens of uint16)"), (".docs.bin", 16, "24 (3 documents of int64)")):
        path = Path(f"{name}{suffix}")
        whole = path.read_bytes()
        path.write_bytes(whole[:have])
        assert refusal(name).startswith(f"{path} has {have} bytes, and c4.v1.json says {says}: it was cut off")
        path.write_bytes(whole)


def test_a_missing_file_is_named(name: Path) -> None:
    Path(f"{name}.docs.bin").unlink()
    assert refusal(name).startswith(f"{name}.docs.bin cannot be read (No such file or directory)")
    Path(f"{name}.json").unlink()
    assert refusal(name).startswith(f"{name}.json does not exist. Give the NAME of `moeframe tokenize --out NAME`")


def test_a_changed_byte_is_found_by_the_checksum(name: Path, monkeypatch) -> None:
    for suffix in (".bin", ".docs.bin"):
        path = Path(f"{name}{suffix}")
        whole = path.read_bytes()
        path.write_bytes(whole[:-2] + bytes([whole[-2] ^ 1]) + whole[-1:])
        assert refusal(name).startswith(f"{path} has the checksum ")
        with monkeypatch.context() as large:
            large.setattr(store_module, "VERIFIED_BYTES", 10)
            TokenStore(name)
            assert refusal(name, verify=True).startswith(f"{path} has the checksum ")
        path.write_bytes(whole)


def test_a_damaged_token_of_a_large_file_is_refused_when_it_is_read(name: Path, monkeypatch) -> None:
    monkeypatch.setattr(store_module, "VERIFIED_BYTES", 10)
    path = Path(f"{name}.bin")
    whole = bytearray(path.read_bytes())
    whole[11] = 0xFF
    path.write_bytes(whole)
    store = TokenStore(name)
    assert store.tokens(0, 5).tolist() == [5, 6, 7, 8, 9]
    with pytest.raises(UserInputError, match=r"c4\.v1\.bin: token number 5 is 65290, .* all are below 256"):
        store.tokens(3, 8)


@pytest.mark.parametrize(("changes", "message"), [
    ({"format": "other"}, "is no header of tokens: its `format` is not 'moeframe-tokens'"),
    ({"version": 2}, "has format version 2, and this moeframe reads version 1"),
    ({"dtype": "float8"}, "is damaged: dtype is 'float8', which is none of uint16, uint32"),
    ({"num_tokens": "8"}, "is damaged: num_tokens is '8'"),
    ({"num_tokens": True}, "is damaged: num_tokens is True"),
    ({"num_documents": -1}, "is damaged: num_documents is -1"),
    ({"vocab_size": None}, "is damaged: vocab_size is None"),
])  # fmt: skip
def test_another_header_is_refused(name: Path, changes: dict[str, object], message: str) -> None:
    path = Path(f"{name}.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    assert refusal(name).startswith(f"{path} {message}")


def test_a_header_without_a_field_or_that_is_no_json_is_refused(name: Path) -> None:
    path = Path(f"{name}.json")
    content = json.loads(path.read_text())
    del content["tokens_sha256"]
    path.write_text(json.dumps(content))
    with pytest.raises(UserInputError, match=re.escape(f"{path} is damaged: tokens_sha256 is missing")):
        read_header(Paths.of(name))
    path.write_text("{")
    assert refusal(name).startswith(f"{path} is no JSON")
