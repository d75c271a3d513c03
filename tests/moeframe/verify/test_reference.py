from __future__ import annotations

from itertools import combinations

import numpy
import pytest
import torch

from moeframe.protocols.compute import ComputeContext
from moeframe.protocols.data import IGNORED, DatasetContext
from moeframe.protocols.dispatcher import DispatcherContext
from moeframe.protocols.precision import Precision
from moeframe.train.data import DataOrder, make_micro_batch
from moeframe.verify.reference.compute import ReferenceCompute
from moeframe.verify.reference.data import ReferenceData
from moeframe.verify.reference.dispatcher import ReferenceDispatcher
from moeframe.verify.reference.plugin import ReferenceDataOptions


def tokens_of(seed: int, batch: int) -> dict[str, list[int]]:
    """Return by kind the tokens of every sequence of the first global batch, in its order."""
    context = DatasetContext(seq_len=12, vocab_size=32, seed=seed, split="train", num_experts=8, top_k=2)
    data = ReferenceData(ReferenceDataOptions(num_sequences=2 * batch), context)
    order = DataOrder(data.num_sequences, seed)
    sequences = [data.sequence(order.index(position)) for position in range(batch)]
    batches = make_micro_batch(sequences, mtp_depth=1, device=torch.device("cpu"))
    assert batches.valid is not None
    return {
        "targets": (batches.targets != IGNORED).sum(1).tolist(),
        "mtp": (batches.mtp_targets[0] != IGNORED).sum(1).tolist(),
        "valid": batches.valid.sum(1).tolist(),
    }


@pytest.mark.parametrize("seed", [0, 1, 1234])
@pytest.mark.parametrize("batch", [8, 16, 32])
@pytest.mark.parametrize("ranks", [2, 4])
def test_no_two_ranks_have_equally_many_tokens(seed: int, batch: int, ranks: int) -> None:
    """Otherwise a mean of the ranks' means would be the mean, and a wrong one would pass."""
    for kind, tokens in tokens_of(seed, batch).items():
        sums = numpy.asarray(tokens).reshape(ranks, -1).sum(1).tolist()
        different = [first != second for first, second in combinations(sums, 2)]
        assert all(different) if ranks == 2 else any(different), (kind, sums)


def test_equal_indices_give_equal_sequences() -> None:
    context = DatasetContext(seq_len=12, vocab_size=32, seed=0, split="train", num_experts=8, top_k=2)
    one, other = (ReferenceData(ReferenceDataOptions(forced_routing=True), context).sequence(3) for _ in range(2))
    assert numpy.array_equal(one.tokens, other.tokens)
    assert one.expert_ids is not None
    assert all(len(set(row)) == 2 for row in one.expert_ids.tolist())


def test_the_dispatcher_sums_what_experts_return_and_gives_zeros_where_nothing_was_sent() -> None:
    context = DispatcherContext(
        ep_axis="ep",
        ep_size=1,
        ep_rank=0,
        ep_group=None,
        num_experts=3,
        hidden_size=2,
        top_k=2,
        max_tokens=3,
        dtype=torch.float64,
        device=torch.device("cpu"),
    )
    dispatcher = ReferenceDispatcher(context)
    x_TD = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
    ids_TK = torch.tensor([[0, 2], [-1, -1], [2, -1]])
    dispatched = dispatcher.dispatch(x_TD, torch.ones(3, 2, dtype=torch.float64), dispatcher.layout(ids_TK))
    assert dispatched.counts_E.tolist() == [1, 0, 2]
    assert dispatched.rows_RD.tolist() == [[1, 2], [1, 2], [5, 6]]
    assert dispatcher.combine(dispatched.rows_RD, dispatched).tolist() == [[2, 4], [0, 0], [5, 6]]


def test_attention_looks_where_it_may() -> None:
    context = ComputeContext(precision=Precision.of("float64"), device=torch.device("cpu"))
    q = k = torch.zeros(1, 1, 3, 2, dtype=torch.float64)  # equal scores: means over what may be seen
    v = torch.tensor([[[[1.0], [2.0], [6.0]]]], dtype=torch.float64)
    attention = ReferenceCompute(context).attention
    assert attention(q, k, v, scale=1.0, mask=None).flatten().tolist() == pytest.approx([1.0, 1.5, 3.0])
    mask = torch.tensor([[[[True, False, False], [False, True, False], [False, True, True]]]])
    assert attention(q, k, v, scale=1.0, mask=mask).flatten().tolist() == pytest.approx([1.0, 2.0, 4.0])
