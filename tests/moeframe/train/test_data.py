from __future__ import annotations

import numpy
import pytest
import torch

from moeframe.errors import UserInputError
from moeframe.protocols.data import Dataset, TokenSequence
from moeframe.train.data import BatchPlan, DataOrder, make_micro_batch, padding_sequence, require_enough

CPU = torch.device("cpu")


class Counting(Dataset):
    def __init__(self, num_sequences: int) -> None:
        self._num = num_sequences

    @property
    def num_sequences(self) -> int:
        return self._num

    def sequence(self, index: int) -> TokenSequence:
        return TokenSequence(tokens=numpy.arange(index, index + 5, dtype=numpy.int64))


def test_every_epoch_sees_each_sequence_once_in_a_new_order() -> None:
    order = DataOrder(7, seed=3)
    epochs = [[order.index(epoch * 7 + offset) for offset in range(7)] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


def test_the_order_depends_on_seed_and_position_alone() -> None:
    walked = DataOrder(11, seed=5)
    for position in range(40):
        walked.index(position)
    assert walked.index(25) == DataOrder(11, seed=5).index(25)
    assert [DataOrder(11, seed=1).index(i) for i in range(11)] != [DataOrder(11, seed=2).index(i) for i in range(11)]


@pytest.mark.parametrize(("data_ranks", "micro"), [(1, 8), (1, 2), (2, 2), (4, 1), (4, 2)])
def test_every_layout_reads_the_same_sequences_in_a_step(data_ranks: int, micro: int) -> None:
    seen: list[int] = []
    for rank in range(data_ranks):
        plan = BatchPlan(global_batch_size=8, micro_batch_size=micro, data_rank=rank, data_ranks=data_ranks)
        batches = plan.positions(3)
        assert len(batches) == plan.num_micro_batches == 8 // data_ranks // micro
        seen += [position for batch in batches for position in batch]
    assert seen == list(range(24, 32))


def test_targets_look_one_token_ahead_and_mtp_targets_one_more() -> None:
    batch = make_micro_batch([Counting(1).sequence(10)], mtp_depth=2, device=CPU)
    assert batch.input_ids.tolist() == [[10, 11, 12, 13]]
    assert batch.targets.tolist() == [[11, 12, 13, 14]]
    assert [targets.tolist() for targets in batch.mtp_targets] == [[[12, 13, 14, -100]], [[13, 14, -100, -100]]]
    assert batch.valid is None


def test_c17_padding_is_no_input_and_no_target() -> None:
    padded = TokenSequence(
        tokens=numpy.array([1, 2, 3, 0, 0], dtype=numpy.int64),
        padding=numpy.array([False, False, False, True, True]),
    )
    batch = make_micro_batch([padded], mtp_depth=1, device=CPU)
    assert batch.valid is not None
    assert batch.valid.tolist() == [[True, True, True, False]]
    assert batch.targets.tolist() == [[2, 3, -100, -100]]
    assert batch.mtp_targets[0].tolist() == [[3, -100, -100, -100]]


def test_a_padding_sequence_counts_nowhere() -> None:
    batch = make_micro_batch([padding_sequence(4)], mtp_depth=1, device=CPU)
    assert batch.valid is not None
    assert not batch.valid.any()
    assert batch.targets.unique().tolist() == batch.mtp_targets[0].unique().tolist() == [-100]


def test_c66_data_below_one_global_batch_is_refused_with_the_numbers() -> None:
    with pytest.raises(UserInputError, match=r"has 3 sequences.*global_batch_size is 4"):
        require_enough(Counting(3), name="x", steps=1, global_batch_size=4, repeat=True)


def test_data_that_may_not_repeat_must_last_for_all_steps() -> None:
    with pytest.raises(UserInputError, match=r"has 10 sequences.*need 12.*train.steps=2"):
        require_enough(Counting(10), name="x", steps=3, global_batch_size=4, repeat=False)
    require_enough(Counting(12), name="x", steps=3, global_batch_size=4, repeat=False)
