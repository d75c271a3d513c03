"""Documents out of files: plain text, one each, or JSON lines, one a line. Imports neither torch nor numpy."""

from __future__ import annotations

import codecs
import glob
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from moeframe.errors import UserInputError

__all__ = ["PIECE", "Piece", "Reading", "matched_files", "read_pieces", "require_match"]

PIECE: Final = 1 << 19
"""Characters after which a long document is cut before a line break and tokenized in pieces."""
_CHUNK: Final = 1 << 20
_JSON_LINES: Final = (".jsonl", ".ndjson")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read."""

    field: str = "text"
    """Key of the text in a JSON line."""
    errors: Literal["strict", "replace"] = "strict"
    """What happens to bytes that are not UTF-8."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A document or a part of one."""

    text: str
    ends_document: bool
    position: int
    """Bytes of the file that have been read."""


def matched_files(patterns: Sequence[str]) -> list[Path]:
    """Return the files, each once: by pattern, then by name.

    Raises:
        UserInputError: a pattern matches no file.
    """
    found: dict[Path, None] = {}
    for pattern in patterns:
        paths = [Path(name) for name in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  absolute pattern
        files = [path for path in paths if path.is_file()]
        if not files:
            raise _no_match(pattern, paths)
        found.update(dict.fromkeys(files))
    return list(found)


def require_match(pattern: str) -> None:
    """Raise what `matched_files` would for one pattern, after a look at as few files as possible."""
    paths = []
    for name in glob.iglob(pattern, recursive=True):  # noqa: PTH207
        path = Path(name)
        if path.is_file():
            return
        paths.append(path)
    raise _no_match(pattern, paths)


def is_json_lines(path: Path) -> bool:
    """Return whether a file has a document a line."""
    return path.suffix.lower() in _JSON_LINES


def _no_match(pattern: str, paths: list[Path]) -> UserInputError:
    if any(path.is_dir() for path in paths):
        return UserInputError(f"{pattern} matches folders only. Name the files in them, such as {pattern}/**/*.txt.")
    if paths:
        return UserInputError(f"{pattern} matches nothing that can be read as a file, such as {paths[0]}.")
    return UserInputError(f"{pattern} matches no file. Correct the path or the pattern.")


def read_pieces(path: Path, reading: Reading) -> Iterator[Piece]:
    """Yield the documents of a file in pieces of about `PIECE` characters; one without text yields an empty piece.

    Raises:
        UserInputError: the file cannot be read, is not UTF-8 (with the offset of the byte), or a line is not a JSON
            object with a text under the field (with the number of the line).
    """
    try:
        yield from _json_lines(path, reading) if is_json_lines(path) else _plain(path, reading)
    except OSError as error:
        raise UserInputError(f"{path} cannot be read ({error.strerror or error}).") from error


def _plain(path: Path, reading: Reading) -> Iterator[Piece]:
    decoder = codecs.getincrementaldecoder("utf-8")(reading.errors)
    text, position = "", 0
    with path.open("rb") as file:
        while True:
            chunk = file.read(_CHUNK)
            waiting = len(decoder.getstate()[0])
            try:
                new = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, position - waiting + error.start, error) from error
            text += new.removeprefix("\ufeff") if position == 0 else new
            position += len(chunk)
            while len(text) > PIECE:
                cut = _cut(text)
                yield Piece(text[:cut], ends_document=False, position=position)
                text = text[cut:]
            if not chunk:
                yield Piece(text, ends_document=True, position=position)
                return


def _cut(text: str) -> int:
    """Return where to cut the first piece off: before a line break after a letter or a digit where there is one.

    There most tokenizers cut anyway: most keep a line break apart from the word before it.
    """
    end = PIECE
    while (end := text.rfind("\n", 1, end)) > PIECE // 2:
        if text[end - 1].isalnum():
            return end
    end = text.rfind("\n", 1, PIECE)
    return end if end > 0 else PIECE


def _json_lines(path: Path, reading: Reading) -> Iterator[Piece]:
    position = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8", reading.errors)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, position + error.start, error, number) from error
            position += len(raw)
            line = line.removeprefix("\ufeff") if number == 1 else line
            if not line.strip():
                continue
            text = _text_of(line, f"{path}:{number}", reading)
            start = 0
            while len(text) - start > PIECE:
                cut = _cut(text[start : start + PIECE + 1])
                yield Piece(text[start : start + cut], ends_document=False, position=position)
                start += cut
            yield Piece(text[start:], ends_document=True, position=position)


def _text_of(line: str, place: str, reading: Reading) -> str:
    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise UserInputError(f"{place}: the line is no JSON ({error}). Correct it, or remove it.") from error
    if not isinstance(entry, dict):
        raise UserInputError(
            f"{place}: the line is no JSON object but {_kind(entry)}. Write {{{reading.field!r}: ...}}."
        )
    if reading.field not in entry:
        keys = ", ".join(map(repr, list(entry)[:8])) or "none"
        raise UserInputError(
            f"{place}: the line has no field {reading.field!r}; its fields: {keys}. Name the one that holds the text "
            f"with the option `field` (`moeframe tokenize --field`)."
        )
    text = entry[reading.field]
    if not isinstance(text, str):
        raise UserInputError(f"{place}: the field {reading.field!r} holds {_kind(text)}, not a text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if reading.errors == "strict":
            raise UserInputError(
                f"{place}: the field {reading.field!r} holds half of a surrogate pair at character {error.start}, "
                f"which is no text. Correct the line, or set the option errors: replace (`moeframe tokenize "
                "--replace-errors`)."
            ) from error
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _kind(value: Any) -> str:
    """Return in words what a JSON value is."""
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", type(None): "null"}
    return kinds.get(type(value), "a number")


def _not_utf8(path: Path, offset: int, error: UnicodeDecodeError, line: int | None = None) -> UserInputError:
    place = f"{path}" if line is None else f"{path}:{line}"
    byte = error.object[error.start]
    return UserInputError(
        f"{place}: byte {offset} (0x{byte:02x}) is not UTF-8 ({error.reason}). Convert the file, leave it out, or set "
        "the option errors: replace (`moeframe tokenize --replace-errors`)."
    )
