"""The data protocol: sequences of token ids by position, and the micro-batches made of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    import torch

__all__ = [
    "IGNORED",
    "Dataset",
    "DatasetContext",
    "DatasetTraits",
    "MicroBatch",
    "TokenSequence",
    "TokenizeRequest",
    "Tokenized",
]

IGNORED = -100
"""A target that counts nowhere (as in torch and Hugging Face)."""


@dataclass(frozen=True, kw_only=True)
class DatasetTraits:
    """What the rest of a job may rely on."""

    vocabulary: int | None
    """Number of distinct token ids, when it is known before the data is read: the largest one plus 1."""
    forces_routing: bool = False
    """Sequences carry expert ids that replace the router's choice (benchmarks)."""
    holds_out: bool = True
    """There is a validation split; false: the options hold nothing out."""


@dataclass(frozen=True, kw_only=True)
class DatasetContext:
    """What a data set is opened for. Each sequence has `seq_len` + 1 tokens: inputs and targets overlap.

    `local_rank` counts this process among those of the job on this machine. What is prepared once for all of them is
    left to the first one, which also reports progress; what a data set returns depends on it in no way.
    """

    seq_len: int
    vocab_size: int
    seed: int
    split: Literal["train", "validation"]
    num_experts: int
    top_k: int
    local_rank: int = 0


@dataclass(frozen=True, kw_only=True)
class TokenSequence:
    """One training sequence.

    `tokens`: (S + 1,) int64. `padding`: (S + 1,) bool, true where there is no token, or None. `expert_ids`: (S, K)
    int64 when the data set forces the routing, else None. `document_ids`: (S + 1,) int64, equal for the tokens of one
    document, which stand together, when documents shall not see each other; None: the whole sequence is one.
    """

    tokens: numpy.typing.NDArray[numpy.int64]
    padding: numpy.typing.NDArray[numpy.bool_] | None = None
    expert_ids: numpy.typing.NDArray[numpy.int64] | None = None
    document_ids: numpy.typing.NDArray[numpy.int64] | None = None


@runtime_checkable
class Dataset(Protocol):
    """Sequences by index, the same on every rank and in every layout. Imports no torch."""

    @property
    def num_sequences(self) -> int:
        """How many sequences one epoch has; 0 is legal and refused by the trainer with the numbers."""
        ...

    def sequence(self, index: int) -> TokenSequence:
        """Return sequence `index` of [0, num_sequences); a pure function of the index."""
        ...


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """What one micro-batch brings to the model, on the model's device.

    `input_ids`: (B, S) int64. `targets`: (B, S) int64, the next token of each position, `IGNORED` where none counts.
    `mtp_targets`: tuple over MTP depths d = 1..D of (B, S) int64, the token d + 1 ahead. `valid`: (B, S) bool, false
    for padding, or None when there is none. `expert_ids`: (B, S, K) int64 forced routing, or None. `document_ids`:
    (B, S) int64, equal within a sequence for inputs that may see each other, or None when all may. A target of another
    document is `IGNORED`.
    """

    input_ids: torch.Tensor
    targets: torch.Tensor
    mtp_targets: tuple[torch.Tensor, ...] = ()
    valid: torch.Tensor | None = None
    expert_ids: torch.Tensor | None = None
    document_ids: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizeRequest:
    """Texts that `moeframe tokenize` wants written as tokens."""

    inputs: tuple[str, ...]
    """Files or glob patterns: plain text, a document each, or ``.jsonl``, a document a line."""
    out: Path
    """Where the result goes; a data set may append suffixes to the name."""
    tokenizer: str
    """``byte``, or a Hugging Face tokenizer.json."""
    field: str = "text"
    """Key of the text in a ``.jsonl`` line."""
    document_separator: int | str | None = "auto"
    """Token that ends each document: its id or its text; None: none; ``auto``: 0 with ``byte``, else refused."""
    errors: Literal["strict", "replace"] = "strict"
    """What to do with bytes that are not UTF-8: refuse, or put U+FFFD in their place."""
    overwrite: bool = False
    """Replace files that are there already."""


@dataclass(frozen=True, kw_only=True)
class Tokenized:
    """What was written."""

    files: tuple[Path, ...]
    documents: int
    tokens: int
    vocabulary: int
    options: dict[str, str]
    """Options of the data set that reads it, for a recipe."""
