"""Which sequences a step trains on, and the micro-batches made of them.

The order depends on the seed and the global position alone: layouts and restarts see the same sequences.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from moeframe.errors import UserInputError
from moeframe.protocols.data import IGNORED, Dataset, MicroBatch, TokenSequence
from moeframe.train.permutation import Permutation

if TYPE_CHECKING:
    import numpy

__all__ = ["BatchPlan", "DataOrder", "make_micro_batch", "padding_sequence", "require_enough"]


class DataOrder:
    """Position in the run -> index in the data set, in a new seeded order every epoch.

    A pure function of the seed and the position that holds no table of the indices, so an epoch may have any size.
    """

    def __init__(self, num_sequences: int, seed: int) -> None:
        """Keep the numbers; `num_sequences` is at least 1."""
        self._num_sequences = num_sequences
        self._seed = seed
        self._order = lru_cache(maxsize=2)(self._new_order)

    def _new_order(self, epoch: int) -> Permutation:
        return Permutation(self._num_sequences, self._seed, epoch)

    def index(self, position: int) -> int:
        """Return the sequence at a global position, counted from 0 over all epochs."""
        epoch, offset = divmod(position, self._num_sequences)
        return self._order(epoch)[offset]


class BatchPlan:
    """What this data rank reads in a step: a contiguous share of the global batch, cut into micro-batches.

    Args:
        global_batch_size: sequences of a step over all data ranks.
        micro_batch_size: sequences of one forward.
        data_rank: this rank among the data ranks.
        data_ranks: their number; `global_batch_size` is a multiple of `data_ranks` x `micro_batch_size`.
    """

    def __init__(self, *, global_batch_size: int, micro_batch_size: int, data_rank: int, data_ranks: int) -> None:
        """Keep the numbers."""
        self._global = global_batch_size
        self._micro = micro_batch_size
        self._own = global_batch_size // data_ranks
        self._first = data_rank * self._own

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of this rank in a step."""
        return self._own // self._micro

    def positions(self, step: int) -> list[list[int]]:
        """Return the global positions of each micro-batch of a step, counted from 0."""
        start = step * self._global + self._first
        return [
            list(range(start + number * self._micro, start + (number + 1) * self._micro))
            for number in range(self.num_micro_batches)
        ]


def require_enough(dataset: Dataset, *, name: str, steps: int, global_batch_size: int, repeat: bool) -> None:
    """Refuse data that cannot fill the steps.

    Raises:
        UserInputError: there is less than one global batch, or, without `repeat`, fewer sequences than all steps need.
    """
    have = dataset.num_sequences
    if have < global_batch_size:
        raise UserInputError(
            f"data.name = {name!r} has {have} sequences of the given length, but train.global_batch_size is "
            f"{global_batch_size}: not one step can be filled. Use more data, a smaller train.seq_len or a smaller "
            f"global batch."
        )
    if not repeat and have < steps * global_batch_size:
        raise UserInputError(
            f"data.name = {name!r} has {have} sequences, but train.steps = {steps} of train.global_batch_size = "
            f"{global_batch_size} need {steps * global_batch_size}, and data.repeat is false. Use "
            f"train.steps={have // global_batch_size} or data.repeat=true."
        )


def padding_sequence(seq_len: int) -> TokenSequence:
    """Return a sequence that counts nowhere; it fills up a rank's last batch."""
    import numpy

    return TokenSequence(
        tokens=numpy.zeros(seq_len + 1, dtype=numpy.int64), padding=numpy.ones(seq_len + 1, dtype=numpy.bool_)
    )


def _shifted(tokens: torch.Tensor, there: torch.Tensor, document_ids: torch.Tensor | None, ahead: int) -> torch.Tensor:
    """Return for every input position the token `ahead` positions later.

    IGNORED where either is no token, or the two belong to different documents.
    """
    width = tokens.shape[1] - 1
    targets = torch.full((tokens.shape[0], width), IGNORED, dtype=torch.int64)
    upto = width + 1 - ahead
    both = there[:, :upto] & there[:, ahead:]
    if document_ids is not None:
        both = both & (document_ids[:, :upto] == document_ids[:, ahead:])
    targets[:, :upto] = torch.where(both, tokens[:, ahead:], IGNORED)
    return targets


def _stacked(arrays: list[numpy.ndarray[Any, Any] | None], like: torch.Tensor, dtype: Any) -> torch.Tensor | None:
    """Return (B, S + 1) of what some sequences have, zeros for the others; None when none has it."""
    import numpy

    if all(array is None for array in arrays):
        return None
    nothing = numpy.zeros(like.shape[1], dtype=dtype)
    return torch.from_numpy(numpy.stack([nothing if array is None else array for array in arrays]))


def make_micro_batch(sequences: list[TokenSequence], *, mtp_depth: int, device: torch.device) -> MicroBatch:
    """Stack sequences of S + 1 tokens into inputs (B, S) and the targets of the model and of its MTP modules."""
    import numpy

    tokens = torch.from_numpy(numpy.stack([sequence.tokens for sequence in sequences]))
    padding = _stacked([sequence.padding for sequence in sequences], tokens, numpy.bool_)
    document_ids = _stacked([sequence.document_ids for sequence in sequences], tokens, numpy.int64)
    there = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    forced = [sequence.expert_ids for sequence in sequences if sequence.expert_ids is not None]
    valid = there[:, :-1]
    targets = [_shifted(tokens, there, document_ids, ahead).to(device) for ahead in range(1, mtp_depth + 2)]
    return MicroBatch(
        input_ids=tokens[:, :-1].contiguous().to(device),
        targets=targets[0],
        mtp_targets=tuple(targets[1:]),
        valid=None if bool(valid.all()) else valid.to(device),
        expert_ids=torch.from_numpy(numpy.stack(forced)).to(device) if forced else None,
        document_ids=None if document_ids is None else document_ids[:, :-1].contiguous().to(device),
    )
