"""The data set `token_file`: tokens that `moeframe tokenize` has written."""

from __future__ import annotations

from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits
from moeframe_datasets.header import Paths, read_header
from moeframe_datasets.options import TokenFileOptions
from moeframe_datasets.refusals import concerning, refused

__all__ = ["open_token_file", "token_file_traits"]


def token_file_traits(options: TokenFileOptions) -> DatasetTraits:
    """Check the options and say how large the vocabulary is, by a look at the headers but at no token.

    Raises:
        RecipeError: an option is refused.
    """
    _require_options(options)
    with concerning("path"):
        header = read_header(Paths.of(str(options.path)))
    vocabulary = header.vocab_size
    if options.validation_path is not None:
        with concerning("validation_path"):
            other = read_header(Paths.of(options.validation_path))
        if (other.tokenizer, other.tokenizer_sha256) != (header.tokenizer, header.tokenizer_sha256):
            raise refused(
                "validation_path",
                f"its tokens were made by another tokenizer ({other.tokenizer}, {_short(other.tokenizer_sha256)}) than "
                f"those of path ({header.tokenizer}, {_short(header.tokenizer_sha256)}).",
                "Make both with the same tokenizer.",
            )
        vocabulary = max(vocabulary, other.vocab_size)
    return DatasetTraits(
        vocabulary=vocabulary, holds_out=options.validation_path is not None or options.validation_fraction > 0
    )


def _require_options(options: TokenFileOptions) -> None:
    """Refuse options that are wrong whatever the files are."""
    if options.path is None:
        raise refused("path", "missing.", "Give the NAME of `moeframe tokenize INPUT... --out NAME`.")
    if not 0.0 <= options.validation_fraction < 1.0:
        raise refused(
            "validation_fraction",
            f"given {options.validation_fraction}; a share that is held out is 0 or more and below 1.",
            "",
        )
    if options.validation_path is not None and options.validation_fraction:
        raise refused(
            "validation_fraction",
            "given beside validation_path; there is one way to hold data out.",
            "Remove one of them.",
        )


def _short(sha256: str | None) -> str:
    return "built in" if sha256 is None else f"sha256 {sha256[:12]}..."


def open_token_file(options: TokenFileOptions, context: DatasetContext) -> Dataset:
    """Open one split.

    Raises:
        RecipeError: a file is missing, is something else, or is damaged.
    """
    from moeframe_datasets.store import TokenStore
    from moeframe_datasets.windows import TokenWindows, part

    _require_options(options)
    held_out = context.split == "validation" and options.validation_path is not None
    option = "validation_path" if held_out else "path"
    with concerning(option):
        store = TokenStore(getattr(options, option), verify=options.verify)
    whole = options.validation_path is not None
    return TokenWindows(
        store,
        range(len(store)) if whole else part(store, context.split, options.validation_fraction),
        seq_len=context.seq_len,
        mask_documents=options.mask_documents,
    )
