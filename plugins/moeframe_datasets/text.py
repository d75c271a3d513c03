"""The data set `text`: files of one's own, tokenized once."""

from __future__ import annotations

from pathlib import Path

from moeframe.protocols.data import Dataset, DatasetContext, DatasetTraits
from moeframe_datasets.documents import Reading, require_match
from moeframe_datasets.options import TextOptions
from moeframe_datasets.refusals import concerning, refused
from moeframe_datasets.vocabulary import Vocabulary, read_vocabulary, require_library, separator_id

__all__ = ["open_text", "text_traits"]


def text_traits(options: TextOptions) -> DatasetTraits:
    """Check the options and say how large the vocabulary is, by a look at the tokenizer but at no text.

    Raises:
        RecipeError: an option is refused.
    """
    _require_options(options)
    for option, patterns in (("files", options.files), ("validation_files", options.validation_files)):
        for index, pattern in enumerate(patterns):
            with concerning(f"{option}.{index}"):
                require_match(pattern)
    with concerning("tokenizer"):
        require_library(options.tokenizer)
    vocabulary, separator = _vocabulary(options)
    return DatasetTraits(
        vocabulary=max(vocabulary.size, 0 if separator is None else separator + 1),
        holds_out=bool(options.validation_files or options.validation_every or options.validation_fraction),
    )


def _vocabulary(options: TextOptions) -> tuple[Vocabulary, int | None]:
    with concerning("tokenizer"):
        vocabulary = read_vocabulary(options.tokenizer)
    with concerning("document_separator"):
        return vocabulary, separator_id(options.document_separator, vocabulary)


def _require_options(options: TextOptions) -> None:
    """Refuse options that are wrong whatever the files are."""
    if not options.files:
        raise refused("files", "missing.", "Name files or patterns: data.options.files=[data/**/*.txt].")
    if options.validation_every and options.validation_every < 2:
        raise refused(
            "validation_every",
            f"given {options.validation_every}; one document in so many is held out: 2 or more, or 0 for none.",
            "",
        )
    if not 0.0 <= options.validation_fraction < 1.0:
        raise refused(
            "validation_fraction",
            f"given {options.validation_fraction}; a share that is held out is 0 or more and below 1.",
            "",
        )
    given = [name for name in ("validation_files", "validation_every", "validation_fraction") if getattr(options, name)]
    if len(given) > 1:
        raise refused(given[1], f"given beside {given[0]}; there is one way to hold data out.", "Remove one of them.")


def open_text(options: TextOptions, context: DatasetContext) -> Dataset:
    """Open one split, after tokenizing whatever was not tokenized before.

    Raises:
        RecipeError: the options, the tokenizer or a file are refused.
        JobFailedError: the disk is full, or a file changed meanwhile.
    """
    from moeframe_datasets.cache import Corpus, TokenCache, default_folder
    from moeframe_datasets.documents import matched_files
    from moeframe_datasets.windows import TokenWindows, part

    _require_options(options)
    vocabulary, separator = _vocabulary(options)
    cache = TokenCache(
        default_folder() if options.cache_dir is None else Path(options.cache_dir), local_rank=context.local_rank
    )
    held_out = context.split == "validation"
    option = "validation_files" if held_out and options.validation_files else "files"
    with concerning(option):
        corpus = Corpus(
            files=tuple(matched_files(getattr(options, option))),
            vocabulary=vocabulary,
            reading=Reading(field=options.field, errors=options.errors),
            separator=separator,
            validation_every=options.validation_every,
        )
        store = cache.open(corpus, "validation" if held_out and options.validation_every else "train")
    whole = bool(options.validation_files or options.validation_every)
    return TokenWindows(
        store,
        range(len(store)) if whole else part(store, context.split, options.validation_fraction),
        seq_len=context.seq_len,
        mask_documents=options.mask_documents,
    )
