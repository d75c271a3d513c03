"""Files, tokenizers and data sets to test with."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import moeframe_datasets.plugin as offered
import pytest

from moeframe.hooks import DatasetOffer
from moeframe.protocols.data import Dataset, DatasetContext

OFFERS: dict[str, DatasetOffer] = {offer.name: offer for offer in offered.moeframe_offer_datasets()}


def _context(**changes: object) -> DatasetContext:
    values = {"seq_len": 16, "vocab_size": 256, "seed": 0, "split": "train", "num_experts": 6, "top_k": 2}
    return DatasetContext(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def offers() -> dict[str, DatasetOffer]:
    return OFFERS


@pytest.fixture
def opened() -> Callable[..., Dataset]:
    """Return a function that opens a data set: name, options, changes of the context."""

    def open_it(name: str, options: dict[str, Any] | None = None, **changes: object) -> Dataset:
        offer = OFFERS[name]
        dataset = offer.build(offer.options(**(options or {})), _context(**changes))
        assert isinstance(dataset, Dataset)
        return dataset

    return open_it


@pytest.fixture
def put(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Return a function that writes a file which has not changed for long: nothing waits for it to settle."""

    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        seconds = path.stat().st_mtime - 3600
        os.utime(path, (seconds, seconds))
        return path

    return write


@pytest.fixture
def words(put: Callable[[str, str | bytes], Path]) -> Path:
    """Return a tokenizer.json that knows a few words; ids 0 to 5, and 6 for the end of a text."""
    vocab = {"[UNK]": 0, "the": 1, "cat": 2, "sat": 3, "mat": 4, "on": 5}
    content = {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {
                "id": 6,
                "content": "<end>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<end>": {"id": "<end>", "ids": [6], "tokens": ["<end>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "[UNK]"},
    }
    return put("words/tokenizer.json", json.dumps(content))
