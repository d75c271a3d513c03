"""Which experts a token goes to, and with what weight."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import pytest
import torch

from moeframe.errors import ContractError
from moeframe.model.counters import LayerCounter, stack_counters
from moeframe.model.router import Router, choose_experts, require_expert_ids, within_capacity
from moeframe.model.step_state import StepState

CPU = torch.device("cpu")


def logit(scores: list[float]) -> torch.Tensor:
    scores = torch.tensor(scores, dtype=torch.float64)
    return torch.log(scores / (1 - scores))


def make_router(config, scores_TE=None, bias=None, dtype=torch.float64):
    """A router whose input x of width E has the given scores: its weight is the identity."""
    config = replace(config, hidden_size=config.n_routed_experts)
    counter = LayerCounter(config.n_routed_experts, dtype)
    router = Router(config, dtype=dtype, state=StepState(), counter=counter)
    with torch.no_grad():
        router.weight.copy_(torch.eye(config.n_routed_experts))
        if router.e_score_correction_bias is not None:
            router.e_score_correction_bias.copy_(torch.zeros(1) if bias is None else torch.tensor(bias))
    return router, counter


@pytest.fixture
def four(tiny):
    """Four experts, no groups, two experts a token."""
    return replace(tiny, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2)


def taken(counter):
    return stack_counters([counter], CPU, 4)


def test_weights_come_from_scores_without_bias_c22(four):
    router, _ = make_router(replace(four, routed_scaling_factor=2.5), bias=[0.0, 0.0, 0.5, 0.0])
    ids, gates = router(logit([0.8, 0.6, 0.4, 0.2]).view(1, 1, 4), None, None)
    assert dict(zip(ids[0].tolist(), gates[0].tolist(), strict=True)) == pytest.approx({2: 2.5 / 3, 0: 5 / 3})
    assert gates.sum().item() == pytest.approx(2.5)


@pytest.mark.parametrize("method", ["noaux_tc", "group_limited_greedy"])
def test_groups_of_negative_scores_still_win_over_masked_ones_c21(tiny, method):
    config = replace(tiny, topk_method=method, n_group=4, topk_group=2, num_experts_per_tok=3)
    scores = torch.tensor([[-0.1, -0.2, -0.3, -0.4, -0.9, -1.0, -0.8, -0.7]])
    assert sorted(choose_experts(scores, None, config)[0].tolist()) == [0, 1, 2]


def test_a_group_counts_its_two_best_or_in_v2_its_best(tiny):
    config = replace(tiny, n_group=2, topk_group=1, num_experts_per_tok=2)
    scores = torch.tensor([[0.9, 0.0, 0.0, 0.0, 0.6, 0.6, 0.0, 0.0]])
    assert sorted(choose_experts(scores, None, config)[0].tolist()) == [4, 5]
    v2 = replace(config, topk_method="group_limited_greedy")
    assert choose_experts(scores, None, v2)[0].tolist().count(0) == 1
    assert max(choose_experts(scores, None, v2)[0].tolist()) < 4


def test_greedy_looks_at_no_groups(tiny):
    config = replace(tiny, topk_method="greedy", n_group=2, topk_group=1, num_experts_per_tok=2)
    scores = torch.tensor([[0.9, 0.0, 0.0, 0.0, 0.8, 0.0, 0.0, 0.0]])
    assert sorted(choose_experts(scores, None, config)[0].tolist()) == [0, 4]


def test_groups_of_one_expert_work(tiny):
    config = replace(tiny, n_group=8, topk_group=3, num_experts_per_tok=3)
    assert sorted(choose_experts(torch.arange(8.0).view(1, 8), None, config)[0].tolist()) == [5, 6, 7]


def test_softmax_without_renormalisation_scales_the_plain_scores(four):
    config = replace(
        four, scoring_func="softmax", topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=2.0
    )
    router, _ = make_router(config)
    logits = torch.tensor([[[0.0, 1.0, 2.0, 3.0]]], dtype=torch.float64)
    ids, gates = router(logits, None, None)
    total = sum(math.exp(value) for value in range(4))
    wanted = {3: 2 * math.exp(3) / total, 2: 2 * math.exp(2) / total}
    assert dict(zip(ids[0].tolist(), gates[0].tolist(), strict=True)) == pytest.approx(wanted)
    assert router.e_score_correction_bias is None
    assert not list(router.buffers())


def test_padding_goes_nowhere_and_counts_nowhere_c17(four):
    router, counter = make_router(four)
    x = torch.randn(1, 4, 4, dtype=torch.float64, requires_grad=True)
    valid = torch.tensor([[True, True, False, False]])
    ids, gates = router(x, valid, None)
    assert ids[2:].eq(-1).all()
    assert gates[2:].eq(0).all()
    assert ids[:2].ge(0).all()
    assert taken(counter).tokens_per_expert.sum() == 4
    gates.sum().backward()
    assert x.grad[0, 2:].eq(0).all()


def test_capacity_keeps_the_earlier_tokens_c27(four):
    config = replace(four, num_experts_per_tok=1, capacity_factor=1.0)
    router, counter = make_router(config)
    chosen = [0, 0, 1, 0, 0, 2, 0, 3]
    x = torch.nn.functional.one_hot(torch.tensor(chosen), 4).double().view(1, 8, 4)
    ids, gates = router(x, None, None)
    assert ids.flatten().tolist() == [0, 0, 1, -1, -1, 2, -1, 3]
    assert gates.flatten().eq(0).tolist() == [place == -1 for place in ids.flatten().tolist()]
    counters = taken(counter)
    assert counters.dropped.tolist() == [3]
    assert counters.tokens_per_expert.tolist() == [[5, 1, 1, 1]]


def test_capacity_is_counted_for_each_sequence_and_padding_takes_no_room():
    ids = torch.tensor([[[0], [0], [-1]], [[-1], [0], [0]]])
    assert within_capacity(ids, 2, 1)[..., 0][ids[..., 0] >= 0].tolist() == [True, False, True, False]


def test_equal_scores_are_chosen_alike_again_c23(tiny):
    scores = torch.full((64, 8), 0.5)
    first = choose_experts(scores, torch.zeros(8), tiny)
    assert torch.equal(first, choose_experts(scores.clone(), torch.zeros(8), tiny))
    assert (first == first[0]).all()
    assert first[0].unique().numel() == tiny.num_experts_per_tok


def test_forced_experts_keep_the_gates_of_the_scores(four):
    router, counter = make_router(replace(four, routed_scaling_factor=1.0))
    x = logit([0.8, 0.6, 0.4, 0.2]).view(1, 1, 4)
    ids, gates = router(x, None, torch.tensor([[[3, 1]]]))
    assert ids.tolist() == [[3, 1]]
    assert gates[0].tolist() == pytest.approx([0.25, 0.75])
    assert taken(counter).tokens_per_expert.tolist() == [[0, 1, 0, 1]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[[0, 1], [1, 1]]], "token 1 names expert 1.*distinct"),
        ([[[0, 1], [2, 8]]], r"token 1 names expert 8.*\[0, 8\)"),
        ([[[0, -2]]], "token 0 names expert -2"),
        ([[[0, 1, 2]]], "3 choices a token; the model wants 2"),
    ],
)
def test_impossible_forced_experts_are_refused_c05(tiny, ids, message):
    with pytest.raises(ContractError, match=message):
        require_expert_ids(torch.tensor(ids), tiny)


def test_forced_experts_may_be_absent(tiny):
    require_expert_ids(torch.tensor([[[0, -1], [-1, -1]]]), tiny)


def test_bias_moves_towards_balance_by_global_counts_c18(make_model, tiny):
    model = make_model(
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_hidden_layers=1,
        first_k_dense_replace=0,
        num_nextn_predict_layers=0,
    )
    counts = torch.tensor([[6, 2, 0, 0]]) + torch.tensor([[0, 2, 2, 4]])
    model.update_expert_bias(counts)
    bias = model.blocks["0"].attend.router.e_score_correction_bias
    assert bias.tolist() == pytest.approx([-0.001, 0.0, 0.001, 0.0])
    model.update_expert_bias(torch.zeros(1, 4, dtype=torch.int64))
    assert bias.tolist() == pytest.approx([-0.001, 0.0, 0.001, 0.0])


def test_a_frozen_bias_stays(make_model):
    model = make_model(bias_update_speed=0.0)
    model.update_expert_bias(torch.arange(24).view(3, 8))
    assert all(buffer.eq(0).all() for buffer in model.buffers())


def test_bias_survives_bfloat16_and_saving_bit_for_bit_c20(make_model):
    model = make_model(precision="float32")
    with torch.no_grad():
        for buffer in model.buffers():
            buffer.uniform_(-0.5, 0.5)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to(torch.bfloat16)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = make_model(precision="float32").to(torch.bfloat16)
    other.load_state_dict(torch.load(file))
    for name, buffer in other.named_buffers():
        assert buffer.dtype == torch.float32
        assert torch.equal(buffer, before[name])
    assert other.embedding.weight.dtype == torch.bfloat16
    assert model.double().blocks["1"].attend.router.e_score_correction_bias.dtype == torch.float64


def test_router_computes_in_float32_on_bfloat16_input(four):
    router, _ = make_router(four, dtype=torch.float32)
    with torch.no_grad():
        router.weight += 2.0**-12  # lost in bfloat16
    x = torch.randn(1, 16, 4).bfloat16()
    _, gates = router(x, None, None)
    exact, _ = make_router(four, dtype=torch.float64)
    with torch.no_grad():
        exact.weight.copy_(router.weight)
    _, wanted = exact(x.double(), None, None)
    assert gates.dtype == torch.float32
    torch.testing.assert_close(gates.sort(-1).values.double(), wanted.sort(-1).values, rtol=1e-6, atol=0)
