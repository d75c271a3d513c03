"""What can be known of a tokenizer without its library. Imports neither torch nor numpy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from moeframe.errors import UserInputError
from moeframe_datasets.options import BYTE

__all__ = ["Vocabulary", "read_vocabulary", "require_library", "separator_id"]


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """The tokens of a tokenizer."""

    tokenizer: str
    """``byte``, or the path of a tokenizer.json."""
    size: int
    """Largest token id plus 1."""
    sha256: str | None = None
    """Of the file."""
    ids: Mapping[str, int] = field(default_factory=dict)
    """Ids by text; none of `byte`, whose tokens have no names."""
    special: tuple[str, ...] = ()
    """Texts of the tokens that no text makes."""

    @property
    def name(self) -> str:
        """The tokenizer without a machine's path."""
        return self.tokenizer if self.tokenizer == BYTE else Path(self.tokenizer).name


def read_vocabulary(tokenizer: str) -> Vocabulary:
    """Read the vocabulary of ``byte`` or of a tokenizer.json.

    Raises:
        UserInputError: the file cannot be read, or is no tokenizer.json.
    """
    if tokenizer == BYTE:
        return Vocabulary(tokenizer=BYTE, size=256)
    path = Path(tokenizer)
    try:
        raw = path.read_bytes()
        content = json.loads(raw)
    except IsADirectoryError as error:
        raise UserInputError(f"{path} is a folder. Name the tokenizer.json in it.") from error
    except OSError as error:
        raise UserInputError(
            f"{path} cannot be read ({error.strerror}). Use `byte`, or name a tokenizer.json; nothing is downloaded."
        ) from error
    except ValueError as error:
        raise UserInputError(f"{path} is no tokenizer.json: it is no JSON ({error}).") from error
    ids, special = _ids(content)
    if not ids:
        raise UserInputError(
            f"{path} is no tokenizer.json of the Hugging Face tokenizers library: it has no model.vocab."
        )
    return Vocabulary(
        tokenizer=tokenizer,
        size=max(ids.values()) + 1,
        sha256=hashlib.sha256(raw).hexdigest(),
        ids=ids,
        special=special,
    )


def _ids(content: Any) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return ids by text, and the special tokens; nothing when the content has another form."""
    model = content.get("model") if isinstance(content, dict) else None
    vocab = model.get("vocab") if isinstance(model, dict) else None
    ids: dict[str, int] = {}
    if isinstance(vocab, dict):  # BPE, WordPiece, WordLevel
        ids = {text: number for text, number in vocab.items() if isinstance(number, int)}
    elif isinstance(vocab, list):  # Unigram: [text, score] each
        ids = {entry[0]: number for number, entry in enumerate(vocab) if isinstance(entry, list) and entry}
    added = [
        entry
        for entry in (content.get("added_tokens") or () if ids else ())
        if isinstance(entry, dict) and isinstance(entry.get("id"), int) and isinstance(entry.get("content"), str)
    ]
    ids.update({entry["content"]: entry["id"] for entry in added})
    return ids, tuple(entry["content"] for entry in added if entry.get("special"))


def require_library(tokenizer: str) -> None:
    """Refuse a tokenizer.json when its library is missing.

    Raises:
        UserInputError: with the line that installs it.
    """
    if tokenizer != BYTE and find_spec("tokenizers") is None:
        raise UserInputError(
            f"{tokenizer} needs the Python package `tokenizers`, which is not installed. Run: pip install "
            f"'moeframe[hf]'. Or use the tokenizer `byte`, which needs none."
        )


def separator_id(given: int | str | None, vocabulary: Vocabulary) -> int | None:
    """Return the id of the token that ends documents.

    Args:
        given: id, text, None for no such token, or ``auto``: 0 with `byte`.
        vocabulary: of the tokenizer. With `byte` the id 256 is legal too and makes the vocabulary one larger.

    Raises:
        UserInputError: no such token, or ``auto`` with a tokenizer.json.
    """
    byte = vocabulary.tokenizer == BYTE
    if given is None:
        return None
    if given == "auto" and byte:
        return 0
    if isinstance(given, int):
        limit = vocabulary.size + 1 if byte else vocabulary.size
        if 0 <= given < limit:
            return given
        raise UserInputError(f"{given} is no token of {vocabulary.name}, whose ids are 0 to {limit - 1}.")
    if byte:
        raise UserInputError(
            f"{given!r} is no token of `byte`. Give an id, 0 to 256, or null for none (`moeframe "
            "tokenize` takes the word none)."
        )
    if given in vocabulary.ids:
        return vocabulary.ids[given]
    known = ", ".join(map(repr, vocabulary.special[:8])) or "none"
    what = (
        "it must be given with a tokenizer.json" if given == "auto" else f"{given!r} is no token of {vocabulary.name}"
    )
    raise UserInputError(
        f"{what}. Name the token that ends a document, by text or id, or null for none (`moeframe tokenize` takes the "
        f"word none); special tokens of {vocabulary.name}: {known}."
    )
