"""Each dispatcher: expert gradients as in one process (C07, C08, C09), sums (C06), refusals (C05)."""

from __future__ import annotations

import warnings

import pytest
import torch
from moeframe_collectives.plugin import moeframe_offer_dispatchers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext
from moeframe.testing.ranks import RankError, RankPool

LAYOUTS = ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))
OFFERS = {offer.name: offer for offer in moeframe_offer_dispatchers()}


def build(
    name: str,
    *,
    group: distributed.ProcessGroup | None,
    num_experts: int,
    top_k: int = 1,
    hidden_size: int = 1,
    dtype: torch.dtype = torch.float64,
) -> Dispatcher:
    offer = OFFERS[name]
    dispatcher = offer.build(
        offer.options(),
        DispatcherContext(
            ep_axis="ep",
            ep_size=1 if group is None else group.size(),
            ep_rank=0 if group is None else group.rank(),
            ep_group=group,
            num_experts=num_experts,
            hidden_size=hidden_size,
            top_k=top_k,
            max_tokens=8,
            dtype=dtype,
            device=torch.device("cpu"),
        ),
    )
    assert isinstance(dispatcher, Dispatcher)
    return dispatcher


def gradients_of_two_experts(name: str, ep: int) -> tuple[list[float], list[float]]:
    """Tokens 1 to 4, dealt in order to the ranks; odd ones go to expert 0, even to expert 1; ep 4 has two idle ones.

    Each rank's loss is the mean of its outputs. Return the gradients by expert, as summed by the dispatcher and the
    replicas, and the same divided by the number of data ranks.
    """
    world, rank = distributed.get_world_size(), distributed.get_rank()
    mesh = init_device_mesh("cpu", (world // ep, ep), mesh_dim_names=("edp", "ep"))
    num_experts = max(2, ep)
    dispatcher = build(name, group=mesh["ep"].get_group(), num_experts=num_experts)
    local = num_experts // ep
    w_E1 = torch.nn.Parameter(torch.ones(local, 1, dtype=torch.float64))
    x_TD = torch.arange(1, 5, dtype=torch.float64).view(world, 4 // world)[rank][:, None]
    ids_TK = (x_TD.long() - 1) % 2
    dispatched = dispatcher.dispatch(x_TD, torch.ones_like(x_TD), dispatcher.layout(ids_TK))
    experts_R = torch.arange(local).repeat_interleave(dispatched.counts_E)
    dispatcher.combine(dispatched.rows_RD * w_E1[experts_R], dispatched).mean().backward()
    assert w_E1.grad is not None
    distributed.all_reduce(w_E1.grad, group=mesh["edp"].get_group())
    by_rank = [torch.zeros_like(w_E1.grad) for _ in range(ep)]
    distributed.all_gather(by_rank, w_E1.grad, group=mesh["ep"].get_group())
    summed = torch.cat(by_rank)[:2, 0]
    return summed.tolist(), (summed / world).tolist()


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_c07_expert_gradients_are_sums_over_ranks_and_divide_by_the_data_ranks(ranks: RankPool, name: str) -> None:
    assert ranks.run(gradients_of_two_experts, name, 2, world_size=2) == [([2.0, 3.0], [1.0, 1.5])] * 2


@pytest.mark.parametrize(
    ("name", "world", "ep"),
    [("local", 1, 1), ("local", 2, 1)]
    + [
        (name, world, ep)
        for name in ("alltoall", "allgather")
        for world, ep in ((1, 1), (2, 1), (2, 2), (4, 2), (4, 4))
    ],
)
def test_c08_every_layout_gives_the_gradients_of_one_process(ranks: RankPool, name: str, world: int, ep: int) -> None:
    for _, scaled in ranks.run(gradients_of_two_experts, name, ep, world_size=world):
        assert scaled == [1.0, 1.5]


def accumulate_four_micro_batches(name: str) -> float:
    """Each rank sends a token of 1 to the other's expert, four times; replicas of an expert: a group of one rank."""
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("edp", "ep"))
    dispatcher = build(name, group=mesh["ep"].get_group(), num_experts=2)
    w = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    one = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(4):
        dispatched = dispatcher.dispatch(one, one, dispatcher.layout(torch.tensor([[1 - rank]])))
        dispatcher.combine(dispatched.rows_RD * w, dispatched).sum().backward()
        assert w.grad is not None
    distributed.all_reduce(w.grad, group=mesh["edp"].get_group())
    return w.grad.item()


@pytest.mark.parametrize("name", ["alltoall", "allgather"])
def test_c09_four_micro_batches_accumulate_to_four_times_the_gradient(ranks: RankPool, name: str) -> None:
    assert ranks.run(accumulate_four_micro_batches, name, world_size=2) == [4.0, 4.0]


def sum_eight_expert_outputs(name: str, ep: int) -> tuple[list[float], torch.dtype, torch.dtype]:
    group = distributed.group.WORLD if ep > 1 else None
    dispatcher = build(name, group=group, num_experts=8, top_k=8, hidden_size=2, dtype=torch.bfloat16)
    x_TD = torch.ones(1, 2, dtype=torch.bfloat16)
    dispatched = dispatcher.dispatch(x_TD, torch.ones(1, 8), dispatcher.layout(torch.arange(8)[None]))
    rows_RD = dispatched.rows_RD.clone()
    if distributed.get_rank() == 0:
        rows_RD[: int(dispatched.counts_E[0])] = 256
    out_TD = dispatcher.combine(rows_RD, dispatched)
    return out_TD[0].tolist(), out_TD.dtype, dispatched.gates_R.dtype


@pytest.mark.parametrize(("name", "ep"), [("local", 1), ("alltoall", 1), ("alltoall", 2), ("allgather", 2)])
def test_c06_eight_outputs_256_and_seven_times_1_sum_to_264_in_bfloat16(ranks: RankPool, name: str, ep: int) -> None:
    expected = ([264.0, 264.0], torch.bfloat16, torch.float32)
    assert ranks.run(sum_eight_expert_outputs, name, ep, world_size=ep) == [expected] * ep


@pytest.mark.parametrize("name", ["local", "alltoall", "allgather"])
def test_c05_an_expert_named_twice_by_a_token_is_refused(name: str) -> None:
    dispatcher = build(name, group=None, num_experts=2, top_k=2)

    with pytest.raises(ContractError, match="token 0 names expert 1 twice"):
        dispatcher.layout(torch.tensor([[1, 1]]))


@pytest.mark.parametrize("wrong", [-2, 2])
@pytest.mark.parametrize("name", ["local", "alltoall", "allgather"])
def test_an_id_out_of_range_is_named_with_its_token(name: str, wrong: int) -> None:
    dispatcher = build(name, group=None, num_experts=2)

    with pytest.raises(ContractError, match=rf"token 1, choice 0: expert id {wrong} .*must be in 0 to 1"):
        dispatcher.layout(torch.tensor([[0], [wrong]]))


def test_allgather_refuses_more_tokens_than_it_was_built_for() -> None:
    dispatcher = build("allgather", group=None, num_experts=2)

    with pytest.raises(ContractError, match=r"9 tokens .*max_tokens = 8"):
        dispatcher.layout(torch.zeros(9, 1, dtype=torch.int64))


def test_local_refuses_experts_on_several_ranks(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="built for ep = 2"):
        ranks.run(accumulate_four_micro_batches, "local", world_size=2)


def output_bits(name: str, ep: int) -> tuple[list[float], list[float]]:
    """Random float32 numbers, whose sums depend on their order; tokens are the same on every rank."""
    dispatcher = build(
        name,
        group=distributed.group.WORLD if ep > 1 else None,
        num_experts=4,
        top_k=4,
        hidden_size=3,
        dtype=torch.float32,
    )
    x_TD = torch.randn(8, 3, requires_grad=True)
    ids_TK = torch.stack([torch.randperm(4) for _ in range(8)])
    dispatched = dispatcher.dispatch(x_TD, torch.rand(8, 4), dispatcher.layout(ids_TK))
    out_TD = dispatcher.combine(dispatched.rows_RD * dispatched.gates_R[:, None], dispatched)
    out_TD.sum().backward()
    assert x_TD.grad is not None
    return out_TD.flatten().tolist(), x_TD.grad.flatten().tolist()


def test_alltoall_gives_the_bits_of_local_at_every_group_size(ranks: RankPool) -> None:
    expected = ranks.run(output_bits, "local", 1, world_size=1)[0]

    for ep in (1, 2, 4):
        assert ranks.run(output_bits, "alltoall", ep, world_size=ep) == [expected] * ep


def train_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accumulate_four_micro_batches("allgather")


def test_no_deprecated_collective_is_called(ranks: RankPool) -> None:
    ranks.run(train_without_warnings, world_size=2)
