from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from moeframe_datasets import documents
from moeframe_datasets.documents import Piece, Reading, matched_files, read_pieces, require_match

from moeframe.errors import UserInputError

REPLACE = Reading(errors="replace")


def texts(path: Path, reading: Reading = Reading()) -> list[str]:  # noqa: B008
    """Return the documents of a file, whatever pieces they come in."""
    whole, begun = [], ""
    for piece in read_pieces(path, reading):
        begun += piece.text
        if piece.ends_document:
            whole.append(begun)
            begun = ""
    assert begun == ""
    return whole


def refusal(path: Path, reading: Reading = Reading()) -> str:  # noqa: B008
    with pytest.raises(UserInputError) as caught:
        texts(path, reading)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_text_file_is_one_document_to_the_byte(put) -> None:
    assert texts(put("a.txt", "one\r\n\n two\n")) == ["one\r\n\n two\n"]


def test_a_json_lines_file_is_a_document_a_line_and_blank_lines_are_none(put) -> None:
    path = put("a.jsonl", '{"text": "one\\ntwo", "id": 1}\n\n  \n{"text": "\\u00e4"}')
    assert texts(path) == ["one\ntwo", "ä"]
    assert texts(put("b.JSONL", '{"body": "x"}\n'), Reading(field="body")) == ["x"]


def test_a_byte_order_mark_is_no_text(put) -> None:
    assert texts(put("a.txt", "\ufeffone")) == ["one"]
    assert texts(put("a.jsonl", '\ufeff{"text": "one"}')) == ["one"]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 64])
def test_a_letter_of_many_bytes_survives_the_end_of_a_chunk(put, monkeypatch, chunk: int) -> None:
    monkeypatch.setattr(documents, "_CHUNK", chunk)
    assert texts(put("a.txt", "aé漢𝄞" * 9)) == ["aé漢𝄞" * 9]


def test_a_long_document_comes_in_pieces_cut_before_line_breaks_after_words(put, monkeypatch) -> None:
    monkeypatch.setattr(documents, "PIECE", 20)
    content = "one two three.\nfour\n five six seven eight nine ten eleven\nend"
    for path in (put("a.txt", content), put("a.jsonl", json.dumps({"text": content}))):
        pieces = list(read_pieces(path, Reading()))
        assert [piece.text for piece in pieces] == [
            "one two three.\nfour",
            "\n five six seven eig",
            "ht nine ten eleven",
            "\nend",
        ]
        assert [piece.ends_document for piece in pieces] == [False, False, False, True]


def test_positions_tell_how_much_of_the_file_is_read(put) -> None:
    path = put("a.jsonl", '{"text": "a"}\n{"text": "é"}\n')
    assert list(read_pieces(path, Reading())) == [Piece("a", True, 14), Piece("é", True, 29)]
    assert [piece.position for piece in read_pieces(put("a.txt", "abc"), Reading())] == [3]


@pytest.mark.parametrize("chunk", [1, 4, 1 << 20])
@pytest.mark.parametrize(("content", "offset", "byte"), [
    (b"abc\xffdef", 3, "ff"),
    (b"\x80", 0, "80"),
    ("aé漢".encode() + b"\xe6\xbc", 6, "e6"),  # cut off at the end of the file
    ("aé".encode() + b"\xe6\xbcx", 3, "e6"),
])  # fmt: skip
def test_what_is_not_utf8_is_refused_with_file_and_offset(put, monkeypatch, chunk, content, offset, byte) -> None:
    monkeypatch.setattr(documents, "_CHUNK", chunk)
    path = put("a.txt", content)
    assert refusal(path).startswith(f"{path}: byte {offset} (0x{byte}) is not UTF-8")
    assert "errors: replace" in refusal(path)


def test_what_is_not_utf8_in_a_line_is_refused_with_line_and_offset(put) -> None:
    path = put("a.jsonl", b'{"text": "ok"}\n{"text": "\xff"}\n')
    assert refusal(path).startswith(f"{path}:2: byte 25 (0xff) is not UTF-8")


def test_what_is_not_utf8_is_replaced_on_request(put) -> None:
    assert texts(put("a.txt", b"a\xffb"), REPLACE) == ["a\ufffdb"]
    assert texts(put("a.jsonl", b'{"text": "a\xffb"}'), REPLACE) == ["a\ufffdb"]


def test_half_a_surrogate_pair_is_no_text(put) -> None:
    path = put("a.jsonl", '{"text": "a\\ud800b"}')
    assert refusal(path).startswith(f"{path}:1: the field 'text' holds half of a surrogate pair at character 1")
    assert texts(path, REPLACE) == ["a\ufffdb"]
    assert texts(put("b.jsonl", '{"text": "\\ud834\\udd1e"}')) == ["𝄞"]


@pytest.mark.parametrize(("line", "message"), [
    ('{"body": "x", "id": 2}', "the line has no field 'text'; its fields: 'body', 'id'. Name the one"),
    ("{}", "the line has no field 'text'; its fields: none."),
    ('{"text": 5}', "the field 'text' holds a number, not a text."),
    ('{"text": null}', "the field 'text' holds null, not a text."),
    ('{"text": ["x"]}', "the field 'text' holds a list, not a text."),
    ('["x"]', "the line is no JSON object but a list."),
    ('"x"', "the line is no JSON object but a text."),
    ('{"text": "x"', "the line is no JSON (Expecting"),
])  # fmt: skip
def test_a_line_that_holds_no_text_is_refused_with_its_number(put, line: str, message: str) -> None:
    path = put("a.jsonl", f'{{"text": "good"}}\n\n{line}\n')
    assert refusal(path).startswith(f"{path}:3: {message}")


def test_a_file_that_cannot_be_read_is_named(put, monkeypatch) -> None:
    path = put("a.txt", "x")

    def denied(self: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    assert refusal(path) == f"{path} cannot be read (Permission denied)."


def test_patterns_find_each_file_once_in_order(put, tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", "d.md"):
        put(name, "x")
    patterns = [f"{tmp_path}/b.txt", f"{tmp_path}/**/*.txt"]
    names = [path.relative_to(tmp_path).as_posix() for path in matched_files(patterns)]
    assert names == ["b.txt", "a.txt", "deep/er/c.txt"]


def test_every_pattern_must_match_a_file(put, tmp_path: Path) -> None:
    put("a.txt", "x")
    (tmp_path / "link.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    for pattern, message in (
        ("*.text", "matches no file."),
        ("gone.txt", "matches no file."),
        ("folder", "matches folders only. Name the files in them"),
        ("link.txt", "matches nothing that can be read as a file"),
    ):
        expected = re.escape(f"{tmp_path}/{pattern} {message}")
        with pytest.raises(UserInputError, match=expected):
            matched_files([f"{tmp_path}/a.txt", f"{tmp_path}/{pattern}"])
        with pytest.raises(UserInputError, match=expected):
            require_match(f"{tmp_path}/{pattern}")
    require_match(f"{tmp_path}/*")
    assert matched_files([f"{tmp_path}/*"]) == [tmp_path / "a.txt"]
