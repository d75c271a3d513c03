"""Reads tokens from disk through memory maps, in the format of `header.py`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy
import numpy.typing

from moeframe.errors import UserInputError
from moeframe_datasets.header import AGAIN, Header, Paths, read_header

__all__ = ["TokenStore"]

VERIFIED_BYTES: Final = 256 << 20
"""Files up to this size have their checksum compared whenever they are opened."""

Ids = numpy.typing.NDArray[numpy.int64]


class TokenStore:
    """The tokens of a NAME and the starts of their documents; nothing is read before it is asked for.

    Args:
        name: NAME, or one of its files.
        verify: compare the checksums of large files too.

    Raises:
        UserInputError: a file is missing, is something else, has another version, size or checksum.
    """

    def __init__(self, name: str | Path, *, verify: bool = False) -> None:
        self.paths = Paths.of(name)
        self.header: Header = read_header(self.paths)
        if verify or self.header.tokens_bytes + self.header.documents_bytes <= VERIFIED_BYTES:
            self._verify()
        dtype = numpy.dtype(self.header.dtype).newbyteorder("<")
        self._tokens = _mapped(self.paths.tokens, dtype, self.header.num_tokens)
        self._documents = _mapped(self.paths.documents, numpy.dtype("<i8"), self.header.num_documents)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return self.header.num_tokens

    def tokens(self, start: int, stop: int) -> Ids:
        """Return (stop - start,) int64.

        Raises:
            UserInputError: one of them is not in the vocabulary that the header says.
        """
        found: Ids = self._tokens[start:stop].astype(numpy.int64)
        if len(found) and int(found.max()) >= self.header.vocab_size:
            place = start + int(found.argmax())
            raise UserInputError(
                f"{self.paths.tokens}: token number {place} is {int(found.max())}, and {self.paths.header.name} says "
                f"that all are below {self.header.vocab_size}: the file is damaged. {AGAIN}"
            )
        return found

    def document_ids(self, start: int, stop: int) -> Ids:
        """Return (stop - start,) int64, the number of each token's document, counted from that of the first token."""
        first, last = numpy.searchsorted(self._documents, (start, stop - 1), side="right")
        ids = numpy.zeros(stop - start, dtype=numpy.int64)
        ids[self._documents[first:last] - start] = 1
        return numpy.cumsum(ids)

    def _verify(self) -> None:
        for path, wanted in (
            (self.paths.tokens, self.header.tokens_sha256),
            (self.paths.documents, self.header.documents_sha256),
        ):
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != wanted:
                raise UserInputError(
                    f"{path} has the checksum {found[:12]}..., and {self.paths.header.name} says {wanted[:12]}...: it "
                    f"is damaged or does not belong to it. Copy it again. Otherwise: {AGAIN}"
                )


def _mapped(path: Path, dtype: Any, length: int) -> numpy.typing.NDArray[Any]:
    """Return a read-only map; a file without content cannot be mapped."""
    return numpy.memmap(path, dtype=dtype, mode="r", shape=(length,)) if length else numpy.empty(0, dtype=dtype)
