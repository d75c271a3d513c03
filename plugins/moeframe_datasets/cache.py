"""Tokenized files, kept for the next run. Safe when many processes of many jobs and machines start at once.

``<folder>/<key>/`` holds the tokens of one set of files. The key is a hash of the content of the files, the tokenizer
and the options, so the same text is found again wherever it lies. ``<folder>/seen/<stamp>`` remembers the key of a list
of files by their names, sizes and times of change, so that they are hashed once; ``<stamp>.lock`` is held meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from moeframe.errors import JobFailedError, UserInputError
from moeframe_datasets.documents import Reading, is_json_lines
from moeframe_datasets.encoders import load_encoder
from moeframe_datasets.header import VERSION
from moeframe_datasets.locking import locked
from moeframe_datasets.meter import Meter
from moeframe_datasets.refusals import writing
from moeframe_datasets.store import TokenStore
from moeframe_datasets.tokenizing import write_documents
from moeframe_datasets.vocabulary import Vocabulary
from moeframe_datasets.writer import TokenWriter

__all__ = ["Corpus", "TokenCache", "default_folder"]

logger = logging.getLogger(__name__)

_HEAD_START_S: Final = 30.0
"""How long the other processes of a machine leave the work to the first one, which shows its progress."""
_SETTLED_NS: Final = 2_000_000_000
"""A file that changed more recently may change again without another time of change: that is waited for."""
_CHUNK: Final = 1 << 22

Stamps = list[tuple[str, int, int]]


def default_folder() -> Path:
    """Return ``moeframe/text`` in the user's cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path("~/.cache").expanduser()) / "moeframe" / "text"


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Files and how they become tokens."""

    files: tuple[Path, ...]
    vocabulary: Vocabulary
    reading: Reading
    separator: int | None
    validation_every: int
    """Every so many documents one goes to the tokens named ``validation``, all others to ``train``; 0: none."""

    def rules(self) -> dict[str, Any]:
        """Return what decides on the tokens beside the files."""
        return {
            "format": VERSION,
            "tokenizer": self.vocabulary.sha256 or self.vocabulary.name,
            "separator": self.separator,
            "validation_every": self.validation_every,
            **asdict(self.reading),
        }

    def stamps(self) -> Stamps:
        """Return name, size and time of change of each file.

        Raises:
            UserInputError: one cannot be looked at.
        """
        try:
            return [(str(path), (seen := path.stat()).st_size, seen.st_mtime_ns) for path in self.files]
        except OSError as error:
            raise UserInputError(f"{error.filename} cannot be read ({error.strerror}).") from error


class TokenCache:
    """Opens the tokens of a corpus, and makes them first when they are not there.

    Args:
        folder: where they are kept.
        local_rank: of this process on its machine; the first one works, the others wait.
    """

    def __init__(self, folder: Path, *, local_rank: int = 0) -> None:
        self._folder = folder
        self._first = local_rank == 0

    def open(self, corpus: Corpus, split: str) -> TokenStore:
        """Return the tokens named ``train`` or ``validation``.

        Raises:
            UserInputError: a file cannot be tokenized, or the folder cannot be written.
            JobFailedError: the disk is full, or a file changed while it was read.
        """
        with writing(self._folder, "name another folder with data.options.cache_dir.", option="cache_dir"):
            stamps = corpus.stamps()
            seen = self._folder / "seen" / _digest([stamps, corpus.rules()])
            if (store := self._known(seen, split)) is not None:
                return store
            seen.parent.mkdir(parents=True, exist_ok=True)
            meter = Meter("tokenizing", _total(stamps), shown=self._first)
            with locked(
                seen.with_suffix(".lock"),
                tell=meter.say,
                yield_s=0.0 if self._first else _HEAD_START_S,
                needless=seen.exists,
            ):
                if (store := self._known(seen, split)) is not None:
                    return store
                _settle(stamps)
                key = self._key(corpus, stamps)
                entry = self._folder / key
                if _whole(entry, split) is None:
                    self._make(corpus, entry, meter)
                if corpus.stamps() != stamps:
                    raise JobFailedError(
                        f"one of {len(corpus.files)} file(s), such as {corpus.files[0]}, changed while it was read. "
                        f"Start again."
                    )
                _write_whole(seen, key)
                return TokenStore(entry / split)

    def _known(self, seen: Path, split: str) -> TokenStore | None:
        """Return the tokens when the files were seen before and the tokens are still there and whole."""
        try:
            key = seen.read_text(encoding="ascii")
        except FileNotFoundError:
            return None
        return _whole(self._folder / key, split)

    def _key(self, corpus: Corpus, stamps: Stamps) -> str:
        """Hash the content of all files."""
        meter = Meter("hashing", _total(stamps), shown=self._first)
        done, digests = 0, []
        for path in corpus.files:
            digest = hashlib.sha256()
            try:
                with path.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        digest.update(chunk)
                        done += len(chunk)
                        meter.advance(done)
            except OSError as error:
                raise UserInputError(f"{path} cannot be read ({error.strerror}).") from error
            digests.append((is_json_lines(path), digest.hexdigest()))
        meter.close()
        return _digest([digests, corpus.rules()])

    def _make(self, corpus: Corpus, entry: Path, meter: Meter) -> None:
        """Tokenize into a folder of another name, then give it its own."""
        owner = f".{entry.name}.{socket.gethostname()}"
        for left in self._folder.glob(f"{owner}.*"):  # by a process that was killed: this one holds the lock
            shutil.rmtree(left, ignore_errors=True)
        making = self._folder / f"{owner}.{secrets.token_hex(4)}"
        making.mkdir()
        try:
            self._write(corpus, making, meter)
            _give_name(making, entry)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _write(self, corpus: Corpus, folder: Path, meter: Meter) -> None:
        every = corpus.validation_every
        vocabulary, separator = corpus.vocabulary, corpus.separator
        encoder = load_encoder(vocabulary)
        started = time.monotonic()
        with (
            TokenWriter.open(folder / "train", vocabulary, separator) as train,
            TokenWriter.open(folder / "validation", vocabulary, separator) as validation,
        ):
            try:
                documents = write_documents(
                    corpus.files,
                    corpus.reading,
                    encoder,
                    meter,
                    lambda number: validation if every and number % every == every - 1 else train,
                )
            finally:
                meter.close()
            tokens = train.publish().num_tokens + validation.publish().num_tokens
        logger.info(
            "tokenized %d documents of %d files: %d tokens in %.1f s, kept in %s",
            documents,
            len(corpus.files),
            tokens,
            time.monotonic() - started,
            folder.parent,
        )


def _whole(entry: Path, split: str) -> TokenStore | None:
    """Return finished tokens; None when there are none, or only damaged ones."""
    if not entry.is_dir():
        return None
    try:
        return TokenStore(entry / split)
    except UserInputError as error:
        logger.warning("kept tokens are damaged and are made again: %s", error)
        return None


def _give_name(making: Path, entry: Path) -> None:
    """Put a finished folder in its place: instead of a damaged one, but not of a whole one that came first."""
    if entry.is_dir():
        if all(_whole(entry, split) is not None for split in ("train", "validation")):
            return
        damaged = entry.with_name(f"{making.name}.damaged")
        entry.rename(damaged)  # whoever has it open goes on reading it
        shutil.rmtree(damaged, ignore_errors=True)
    making.rename(entry)


def _settle(stamps: Stamps) -> None:
    """Wait until no file can change without another time of change."""
    wait = max(changed for _, _, changed in stamps) + _SETTLED_NS - time.time_ns()
    if wait > 0:
        time.sleep(min(wait, _SETTLED_NS) / 1e9)


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    part.write_text(text, encoding="ascii")
    part.replace(path)


def _total(stamps: Stamps) -> int:
    return sum(size for _, size, _ in stamps)


def _digest(content: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:40]
