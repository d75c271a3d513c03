"""Options of the data sets. Imports neither torch nor numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from moeframe.hooks import path_field

__all__ = ["BYTE", "PythonSourcesOptions", "SyntheticOptions", "TextOptions", "TokenFileOptions"]

BYTE = "byte"
"""The tokenizer whose tokens are the bytes of the UTF-8 text."""


@dataclass(frozen=True, kw_only=True)
class PythonSourcesOptions:
    """Options of `python_sources`."""

    validation_every: int = 20
    """Every so many files (in the order of their names) one is held out for validation; at least 2."""


@dataclass(frozen=True, kw_only=True)
class SyntheticOptions:
    """Options of `synthetic`."""

    num_sequences: int = 65536
    """Sequences in an epoch."""
    routing: Literal["natural", "balanced", "skewed"] = "natural"
    """natural: the router decides. balanced: every expert gets the same load. skewed: some experts get far more."""
    hot_experts: int = 1
    """Skewed routing: how many experts are hot; at most top-k."""
    hot_share: float = 0.5
    """Skewed routing: the share of tokens that go to all hot experts, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of `text`. Paths are relative to the recipe file."""

    files: tuple[str, ...] = path_field((), patterns=True)
    """UTF-8 files or glob patterns (``**`` for any depth): a document a file, or in ``.jsonl`` files a document a line.

    Quote a pattern that starts with a star: ``files: ["*.txt"]``.
    """
    tokenizer: str = path_field(BYTE, words=(BYTE,))
    """byte: 256 tokens, the bytes. Otherwise a Hugging Face tokenizer.json (extra `hf`)."""
    field: str = "text"
    """Key of the text in a ``.jsonl`` line."""
    document_separator: int | str | None = "auto"
    """Token that ends each document, by id or by its text; null: none.

    auto: 0 with `byte`; a tokenizer.json does not say which of its tokens it is, so there it must be given.
    """
    errors: Literal["strict", "replace"] = "strict"
    """Bytes that are not UTF-8: strict: refused. replace: U+FFFD in their place."""
    mask_documents: bool = False
    """Documents in one sequence do not see each other: in attention, in the targets, in MTP."""
    validation_files: tuple[str, ...] = path_field((), patterns=True)
    """Held out: other files."""
    validation_every: int = 0
    """Held out: every so many documents one; at least 2. 0: none."""
    validation_fraction: float = 0.0
    """Held out: this share of the tokens, at the end. 0 to 1."""
    cache_dir: str | None = path_field(None)
    """Where tokens are kept for the next run; null: ``moeframe`` in ``$XDG_CACHE_HOME``, or in ``~/.cache``."""


@dataclass(frozen=True, kw_only=True)
class TokenFileOptions:
    """Options of `token_file`. Paths are relative to the recipe file."""

    path: str | None = path_field(None)
    """NAME of the files NAME.json, NAME.bin and NAME.docs.bin that `moeframe tokenize --out NAME` made."""
    mask_documents: bool = False
    """Documents in one sequence do not see each other: in attention, in the targets, in MTP."""
    validation_path: str | None = path_field(None)
    """Held out: another NAME."""
    validation_fraction: float = 0.0
    """Held out: this share of the tokens, at the end. 0 to 1."""
    verify: bool = False
    """Compare the checksums of large files too when the job starts; those of up to 256 MiB always are."""
