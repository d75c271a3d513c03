"""Sequences out of a stream of tokens."""

from __future__ import annotations

from typing import Literal

from moeframe.protocols.data import Dataset, TokenSequence
from moeframe_datasets.store import TokenStore

__all__ = ["TokenWindows", "part"]


class TokenWindows(Dataset):
    """Consecutive windows of seq_len + 1 tokens (the last one of a window is the first of the next).

    Args:
        store: the tokens.
        within: which of them.
        seq_len: inputs of a window.
        mask_documents: say which document each token belongs to, so that documents do not see each other.
    """

    def __init__(self, store: TokenStore, within: range, *, seq_len: int, mask_documents: bool) -> None:
        self._store = store
        self._within = within
        self._seq_len = seq_len
        self._mask = mask_documents

    @property
    def num_sequences(self) -> int:
        """Whole windows."""
        return max(0, (len(self._within) - 1) // self._seq_len)

    def sequence(self, index: int) -> TokenSequence:
        """Return window `index`."""
        start = self._within.start + index * self._seq_len
        stop = start + self._seq_len + 1
        return TokenSequence(
            tokens=self._store.tokens(start, stop),
            document_ids=self._store.document_ids(start, stop) if self._mask else None,
        )


def part(store: TokenStore, split: Literal["train", "validation"], fraction: float) -> range:
    """Return the tokens of a split when the last `fraction` of all is held out."""
    cut = len(store) - int(len(store) * fraction)
    return range(cut) if split == "train" else range(cut, len(store))
