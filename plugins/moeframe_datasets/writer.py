"""Writes tokens whole or not at all, in the format of `header.py`."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy

from moeframe.errors import ContractError
from moeframe_datasets.encoders import Tokens
from moeframe_datasets.header import Header, Paths
from moeframe_datasets.vocabulary import Vocabulary

__all__ = ["TokenWriter"]


class _HashedFile:
    """A file under a temporary name, and the checksum of what was written."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        self._path = path
        self._digest = hashlib.sha256()
        stack.callback(self.part.unlink, missing_ok=True)
        self._file: BinaryIO = stack.enter_context(self.part.open("wb"))

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)

    def close(self) -> str:
        """Bring everything to the disk; return the checksum."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._digest.hexdigest()

    def publish(self) -> None:
        self.part.replace(self._path)


class TokenWriter:
    """Takes documents and publishes the three files at the end; see `open`."""

    def __init__(self, paths: Paths, vocabulary: Vocabulary, separator: int | None, stack: ExitStack) -> None:
        self._paths = paths
        self._vocabulary = vocabulary
        self._separator = separator
        self._size = max(vocabulary.size, 0 if separator is None else separator + 1)
        self._dtype = numpy.dtype("<u2" if self._size <= 1 << 16 else "<u4")
        self._tokens = _HashedFile(paths.tokens, stack)
        self._documents = _HashedFile(paths.documents, stack)
        self.num_tokens = 0
        self.num_documents = 0
        self._inside = False

    @classmethod
    @contextmanager
    def open(cls, name: Path, vocabulary: Vocabulary, separator: int | None) -> Iterator[TokenWriter]:
        """Yield a writer of NAME; what is not published when the block ends is removed.

        Args:
            name: NAME; its folder exists.
            vocabulary: of the tokenizer.
            separator: the token to put at the end of each document; None: none.
        """
        with ExitStack() as stack:
            yield cls(Paths(name), vocabulary, separator, stack)

    @property
    def vocab_size(self) -> int:
        """Every token is below it."""
        return self._size

    def add(self, tokens: Tokens, *, ends_document: bool) -> bool:
        """Append to the current document; return whether it ended. A document without tokens leaves no trace.

        Raises:
            ContractError: a token is not in the vocabulary.
        """
        if len(tokens):
            if int(tokens.max()) >= self._vocabulary.size:
                raise ContractError(
                    f"the tokenizer {self._vocabulary.name} made token {int(tokens.max())}, but its file says that all "
                    f"are below {self._vocabulary.size}."
                )
            if not self._inside:
                self._documents.write(self.num_tokens.to_bytes(8, "little"))
                self.num_documents += 1
                self._inside = True
            self._append(tokens)
        if not (ends_document and self._inside):
            return False
        if self._separator is not None:
            self._append(numpy.array([self._separator]))
        self._inside = False
        return True

    def _append(self, tokens: Tokens) -> None:
        self._tokens.write(tokens.astype(self._dtype).tobytes())
        self.num_tokens += len(tokens)

    def publish(self) -> Header:
        """Give the files their names, the header last; return the header."""
        header = Header(
            dtype=self._dtype.name,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            vocab_size=self._size,
            tokenizer=self._vocabulary.name,
            tokenizer_sha256=self._vocabulary.sha256,
            document_separator=self._separator,
            tokens_sha256=self._tokens.close(),
            documents_sha256=self._documents.close(),
        )
        with ExitStack() as stack:
            note = _HashedFile(self._paths.header, stack)
            note.write(header.text().encode())
            note.close()
            self._paths.header.unlink(missing_ok=True)  # an old header never stands beside new tokens
            self._tokens.publish()
            self._documents.publish()
            note.publish()
        return header
