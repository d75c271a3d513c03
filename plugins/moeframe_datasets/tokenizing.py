"""Files become tokens on disk."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from moeframe.errors import UserInputError
from moeframe.protocols.data import Tokenized, TokenizeRequest
from moeframe_datasets.documents import PIECE, Piece, Reading, matched_files, read_pieces
from moeframe_datasets.encoders import Encoder, load_encoder
from moeframe_datasets.header import Paths
from moeframe_datasets.meter import Meter
from moeframe_datasets.refusals import writing
from moeframe_datasets.vocabulary import read_vocabulary, separator_id
from moeframe_datasets.writer import TokenWriter

__all__ = ["tokenize", "write_documents"]

logger = logging.getLogger(__name__)

_BATCH_TEXTS: Final = 1024
_BATCH_CHARACTERS: Final = 16 * PIECE


def write_documents(
    files: Sequence[Path], reading: Reading, encoder: Encoder, meter: Meter, choose: Callable[[int], TokenWriter]
) -> int:
    """Tokenize files and give each document to a writer; return the number of documents.

    Args:
        files: in this order.
        reading: how.
        encoder: the tokenizer.
        meter: told of the progress, in bytes of all files.
        choose: returns the writer of a document, by its number from 0. Documents without tokens have no number.

    Raises:
        UserInputError: a file cannot be read as `reading` says, or none holds a text.
    """
    number, writer = 0, choose(0)
    for batch in _batches(_all_pieces(files, reading, meter)):
        for piece, tokens in zip(batch, encoder.encode([piece.text for piece in batch]), strict=True):
            if writer.add(tokens, ends_document=piece.ends_document):
                number += 1
                writer = choose(number)
    if not number:
        raise UserInputError(f"{_spoken(files)} no text: nothing is left to train on. Name files with text in them.")
    return number


def _all_pieces(files: Sequence[Path], reading: Reading, meter: Meter) -> Iterator[Piece]:
    before = 0
    for path in files:
        position = 0
        for piece in read_pieces(path, reading):
            position = piece.position
            yield piece
            meter.advance(before + position)
        before += position


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in lists that a tokenizer can work on with many cores, and that fit in memory."""
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.text)
        if len(batch) == _BATCH_TEXTS or size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _spoken(files: Sequence[Path]) -> str:
    return f"{files[0]} holds" if len(files) == 1 else f"{len(files)} files ({files[0]} ...) hold"


def tokenize(request: TokenizeRequest) -> Tokenized:
    """Write the texts of a request as NAME.bin, NAME.docs.bin and NAME.json.

    Raises:
        UserInputError: an input, the tokenizer or the place is refused, or the files are there already.
        JobFailedError: the disk is full.
    """
    paths = Paths.of(request.out)
    with writing(paths.header, "use another --out NAME."):
        there = [path for path in (paths.header, paths.tokens, paths.documents) if path.exists()]
    if there and not request.overwrite:
        raise UserInputError(f"{there[0]} is there already. Use --force to replace it, or another --out NAME.")
    vocabulary = read_vocabulary(request.tokenizer)
    separator = separator_id(request.document_separator, vocabulary)
    encoder = load_encoder(vocabulary)
    files = matched_files(request.inputs)
    reading = Reading(field=request.field, errors=request.errors)
    meter = Meter("tokenizing", sum(path.stat().st_size for path in files))
    started = time.monotonic()
    with writing(paths.name.parent, "use another --out NAME."):
        paths.name.parent.mkdir(parents=True, exist_ok=True)
        with TokenWriter.open(paths.name, vocabulary, separator) as writer:
            try:
                write_documents(files, reading, encoder, meter, lambda _: writer)
            finally:
                meter.close()
            header = writer.publish()
    logger.info("tokenized %d documents in %.1f s", header.num_documents, time.monotonic() - started)
    return Tokenized(
        files=(paths.header, paths.tokens, paths.documents),
        documents=header.num_documents,
        tokens=header.num_tokens,
        vocabulary=header.vocab_size,
        options={"path": str(paths.name)},
    )
