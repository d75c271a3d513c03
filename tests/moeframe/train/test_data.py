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


def test_a_position_is_found_without_walking_there_however_large_the_data() -> None:
    order = DataOrder(10**12, seed=1)
    assert 0 <= order.index(5 * 10**12 + 17) < 10**12
    assert order.index(17) != order.index(10**12 + 17)


@pytest.mark.parametrize(("data_ranks", "micro"), [(1, 8), (1, 2), (2, 2), (4, 1), (4, 2)])
def test_every_layout_reads_the_same_sequences_in_a_step(data_ranks: int, micro: int) -> None:
    seen: list[int] = []
    for rank in range(data_ranks):
        plan = BatchPlan(global_batch_size=8, micro_batch_size=micro, data_rank=rank, data_ranks=data_ranks)
        batches = plan.positions(3)
        assert len(batches) == plan.num_micro_batches == 8 // data_ranks // micro
        seen += [position for batch in batches for position in batch]
    assert seen == list(range(24, 32))


def test_no_rank_runs_out_of_data_before_another() -> None:
    order = DataOrder(13, seed=0)  # neither a multiple of the batch nor of the ranks
    plans = [BatchPlan(global_batch_size=8, micro_batch_size=1, data_rank=rank, data_ranks=4) for rank in range(4)]
    for step in range(20):
        batches = [plan.positions(step) for plan in plans]
        assert [len(rank) for rank in batches] == [2, 2, 2, 2]
        read = [position for rank in batches for micro_batch in rank for position in micro_batch]
        assert read == list(range(step * 8, step * 8 + 8))
        assert all(0 <= order.index(position) < 13 for position in read)


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


def test_no_target_lies_in_another_document() -> None:
    packed = TokenSequence(
        tokens=numpy.array([1, 2, 3, 4, 5, 6], dtype=numpy.int64),
        document_ids=numpy.array([0, 0, 0, 1, 1, 2], dtype=numpy.int64),
    )
    batch = make_micro_batch([packed], mtp_depth=2, device=CPU)
    assert batch.input_ids.tolist() == [[1, 2, 3, 4, 5]]
    assert batch.targets.tolist() == [[2, 3, -100, 5, -100]]
    assert [targets.tolist() for targets in batch.mtp_targets] == [
        [[3, -100, -100, -100, -100]],
        [[-100, -100, -100, -100, -100]],
    ]
    assert batch.document_ids is not None
    assert batch.document_ids.tolist() == [[0, 0, 0, 1, 1]]


def test_a_sequence_without_document_ids_is_one_document_among_others() -> None:
    packed = TokenSequence(
        tokens=numpy.array([1, 2, 3], dtype=numpy.int64), document_ids=numpy.array([0, 1, 1], dtype=numpy.int64)
    )
    batch = make_micro_batch([packed, padding_sequence(2)], mtp_depth=0, device=CPU)
    assert batch.document_ids is not None
    assert batch.document_ids.tolist() == [[0, 1], [0, 0]]
    assert batch.targets.tolist() == [[-100, 3], [-100, -100]]
    assert make_micro_batch([padding_sequence(2)], mtp_depth=0, device=CPU).document_ids is None


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
