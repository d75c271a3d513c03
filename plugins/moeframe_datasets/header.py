"""The format of tokens on disk. Imports neither torch nor numpy.

Three files, all numbers little-endian:

- ``NAME.bin``: the token ids of all documents, one after the other, uint16 or uint32;
- ``NAME.docs.bin``: for each document the index of its first token, int64, ascending from 0;
- ``NAME.json``: what is in them (`Header`), with their sizes and checksums. It is written last: without it there is
  nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from moeframe.errors import UserInputError

__all__ = ["VERSION", "Header", "Paths", "read_header"]

FORMAT: Final = "moeframe-tokens"
VERSION: Final = 1
DTYPES: Final = {"uint16": 2, "uint32": 4}
DOCUMENT_BYTES: Final = 8
AGAIN: Final = "Make it again with `moeframe tokenize`."


@dataclass(frozen=True)
class Paths:
    """The three files of a NAME."""

    name: Path

    @classmethod
    def of(cls, given: str | Path) -> Paths:
        """Return the files of a NAME, given as such or as one of its files."""
        text = str(given)
        for suffix in (".docs.bin", ".bin", ".json"):
            if text.endswith(suffix):
                return cls(Path(text.removesuffix(suffix)))
        return cls(Path(text))

    @property
    def header(self) -> Path:
        """What is in the others."""
        return self._with(".json")

    @property
    def tokens(self) -> Path:
        """Token ids."""
        return self._with(".bin")

    @property
    def documents(self) -> Path:
        """Starts of documents."""
        return self._with(".docs.bin")

    def _with(self, suffix: str) -> Path:
        return self.name.with_name(self.name.name + suffix)


@dataclass(frozen=True, kw_only=True)
class Header:
    """NAME.json, without `format` and `version`."""

    dtype: str
    """uint16 or uint32."""
    num_tokens: int
    num_documents: int
    vocab_size: int
    """Every token id is below it."""
    tokenizer: str
    """``byte``, or the name of the tokenizer's file."""
    tokenizer_sha256: str | None
    """Of the tokenizer's file; null for ``byte``."""
    document_separator: int | None
    """The token that ends each document; null: none does."""
    tokens_sha256: str
    documents_sha256: str

    @property
    def tokens_bytes(self) -> int:
        """Size of NAME.bin."""
        return self.num_tokens * DTYPES[self.dtype]

    @property
    def documents_bytes(self) -> int:
        """Size of NAME.docs.bin."""
        return self.num_documents * DOCUMENT_BYTES

    def text(self) -> str:
        """Return the content of NAME.json."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=2) + "\n"


def read_header(paths: Paths) -> Header:
    """Read NAME.json and compare it with the sizes of the other two files. Reads no token.

    Raises:
        UserInputError: a file is missing, is something else, has another version, or has another size.
    """
    header = _parsed(paths.header)
    for path, size, counted in (
        (paths.tokens, header.tokens_bytes, f"{header.num_tokens} tokens of {header.dtype}"),
        (paths.documents, header.documents_bytes, f"{header.num_documents} documents of int64"),
    ):
        try:
            have = path.stat().st_size
        except OSError as error:
            raise UserInputError(
                f"{path} cannot be read ({error.strerror}), which {paths.header.name} belongs to. Copy all three "
                f"files, or: {AGAIN}"
            ) from error
        if have != size:
            raise UserInputError(
                f"{path} has {have} bytes, and {paths.header.name} says {size} ({counted}): it was cut off or does not "
                f"belong to it. Copy it again. Otherwise: {AGAIN}"
            )
    return header


def _parsed(path: Path) -> Header:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise UserInputError(
            f"{path} does not exist. Give the NAME of `moeframe tokenize --out NAME`; it makes NAME.json, NAME.bin and "
            f"NAME.docs.bin."
        ) from error
    except OSError as error:
        raise UserInputError(f"{path} cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserInputError(f"{path} is no JSON ({error}). {AGAIN}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserInputError(f"{path} is no header of tokens: its `format` is not {FORMAT!r}. {AGAIN}")
    if content.get("version") != VERSION:
        raise UserInputError(
            f"{path} has format version {content.get('version')!r}, and this moeframe reads version {VERSION}. {AGAIN}"
        )
    if wrong := _wrong_fields(content):
        raise UserInputError(f"{path} is damaged: {wrong}. {AGAIN}")
    return Header(**{spec.name: content[spec.name] for spec in fields(Header)})


def _wrong_fields(content: dict[str, Any]) -> str:
    """Return what is wrong with the fields of a header, in words; empty when nothing is."""
    hints = {spec.name: str(spec.type) for spec in fields(Header)}
    legal: dict[str, tuple[type, ...]] = {
        "str": (str,),
        "int": (int,),
        "str | None": (str, type(None)),
        "int | None": (int, type(None)),
    }
    for name, hint in hints.items():
        if name not in content:
            return f"{name} is missing"
        value = content[name]
        if not isinstance(value, legal[hint]) or isinstance(value, bool):
            return f"{name} is {value!r}"
    if content["dtype"] not in DTYPES:
        return f"dtype is {content['dtype']!r}, which is none of {', '.join(DTYPES)}"
    negative = [name for name in ("num_tokens", "num_documents", "vocab_size") if content[name] < 0]
    return f"{negative[0]} is {content[negative[0]]}" if negative else ""
