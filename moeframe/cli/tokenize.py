"""`moeframe tokenize`: texts become tokens on disk, once for many runs."""

from __future__ import annotations

from collections.abc import Sequence

from moeframe.errors import UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.offers import DatasetOffer
from moeframe.protocols.data import TokenizeRequest

__all__ = ["separator_of", "tokenize"]


def tokenize(request: TokenizeRequest, *, data_set: str | None, plugins: Sequence[str]) -> str:
    """Write the tokens and return what was written, in words.

    Args:
        request: what to write, and where.
        data_set: which data set shall read it; None: the only one that reads what this command writes.
        plugins: modules of plugins that are not installed.

    Raises:
        UserInputError: an input, the tokenizer or the place is refused, or there is no such data set.
        JobFailedError: the disk is full.
    """
    if not all(request.inputs):
        raise UserInputError("the name of an input is empty. Name text files, .jsonl files or patterns.")
    if request.out.name in ("", ".."):
        raise UserInputError(f"--out {str(request.out)!r} names no file. The command writes NAME.json and others.")
    offer = _writer(Catalog(build_plugin_manager(plugins)), data_set)
    assert offer.tokenize is not None
    written = offer.tokenize(request)
    options = ", ".join(f"{key}: {value}" for key, value in written.options.items())
    return "\n".join(
        [
            f"{written.tokens:,} tokens in {written.documents:,} document(s), vocabulary {written.vocabulary:,}",
            f"  files:  {', '.join(map(str, written.files))}",
            f"  recipe: data: {{name: {offer.name}, options: {{{options}}}}}",
        ]
    )


def separator_of(text: str) -> int | str | None:
    """Return the document separator that an argument says: digits are an id, ``none`` is none, the rest is a token."""
    if text == "none":
        return None
    return int(text) if text.isascii() and text.isdigit() else text


def _writer(catalog: Catalog, name: str | None) -> DatasetOffer:
    """Return the data set that `moeframe tokenize` writes for."""
    if name is not None:
        offer = catalog.resolve("data", name)
        if not isinstance(offer, DatasetOffer) or offer.tokenize is None:
            raise UserInputError(f"--data-set {name}: it reads nothing that `moeframe tokenize` could write.")
        return offer
    writers = [
        record.offer
        for record in catalog.offers("data")
        if isinstance(record.offer, DatasetOffer) and record.offer.tokenize is not None
    ]
    if len(writers) == 1:
        return writers[0]
    if not writers:
        raise UserInputError("no installed plugin offers a data set that reads tokens from files (`moeframe plugins`).")
    names = ", ".join(offer.name for offer in writers)
    raise UserInputError(f"more than one data set reads tokens from files: {names}. Name one with --data-set.")
