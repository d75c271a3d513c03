from __future__ import annotations

import signal

import pytest
import torch

from moeframe.model.counters import Counters
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import StepResult
from moeframe.train.metrics import agree_on_tokens, dead_experts, gather_sums, max_violation

CPU = torch.device("cpu")


def batch(targets: list[list[int]]) -> MicroBatch:
    tensor = torch.tensor(targets)
    return MicroBatch(input_ids=torch.zeros_like(tensor), targets=tensor, mtp_targets=(tensor,))


def agree(rank_targets: list[list[list[int]]], stops: list[int]) -> tuple[int, int, int]:
    import torch.distributed as dist

    rank = dist.get_rank()
    tokens = agree_on_tokens([batch(rank_targets[rank])], mtp_depth=1, copies=1, device=CPU, stop=stops[rank])
    assert tokens.mtp_tokens == (tokens.loss_tokens,)
    return tokens.loss_tokens, tokens.valid_tokens, tokens.stop


def test_token_counts_are_global_and_leave_out_what_counts_nowhere(ranks) -> None:
    results = ranks.run(agree, [[[1, 2, -100]], [[-100, -100, 5]]], [0, 0], world_size=2)
    assert results == [(3, 6, 0), (3, 6, 0)]


@pytest.mark.parametrize(
    ("stops", "agreed"),
    [
        ([0, signal.SIGTERM], signal.SIGTERM),
        ([signal.SIGINT, 0], signal.SIGINT),
        ([2, 15], signal.SIGTERM),
        ([2, 1], signal.SIGHUP),
    ],
)
def test_one_signalled_rank_stops_all(ranks, stops: list[int], agreed: int) -> None:
    results = ranks.run(agree, [[[1]], [[1]]], [int(stop) for stop in stops], world_size=2)
    assert [stop for _, _, stop in results] == [agreed, agreed]


def sums() -> tuple[float, tuple[float, ...], float, int, list[list[int]]]:
    import torch.distributed as dist

    rank = dist.get_rank()
    result = StepResult(ce_sum=torch.tensor([2.0, 90.0][rank]), mtp_sums=torch.tensor([[1.0], [2.0]][rank]))
    counts = torch.tensor([[[6, 2, 0, 0]], [[0, 2, 2, 4]]][rank])
    counters = Counters(tokens_per_expert=counts, balance_sum=torch.tensor([0.5]), dropped=torch.tensor([1]))
    gathered = gather_sums(result, counters)
    assert gathered.tokens_per_expert.tolist() == gathered.loads.tolist()
    return gathered.ce_sum, gathered.mtp_sums, gathered.balance_sum, gathered.dropped, gathered.loads.tolist()


def test_c33_sums_are_added_over_ranks_never_averaged(ranks) -> None:
    results = ranks.run(sums, world_size=2)
    assert results[0] == results[1] == (92.0, (3.0,), 1.0, 2, [[6, 4, 2, 4]])
    assert results[0][0] / (1 + 9) == 9.2


def test_expert_load_is_named_by_its_worst_layer() -> None:
    loads = torch.tensor([[4, 4], [6, 2], [8, 0]])
    assert max_violation(loads) == 1.0
    assert dead_experts(loads) == 1


def test_no_moe_layer_or_no_load_is_no_violation() -> None:
    assert max_violation(torch.zeros(0, 4, dtype=torch.int64)) == 0.0
    assert max_violation(torch.zeros(2, 4, dtype=torch.int64)) == 0.0
