"""The sequence-wise balance loss: its value, its gradient, and what is counted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from moeframe.model.balance import balance_sum, inject
from moeframe.model.counters import LayerCounter, stack_counters
from moeframe.model.router import Router
from moeframe.model.step_state import StepState

SCORES = torch.tensor([0.8, 0.6, 0.4, 0.2], dtype=torch.float64)
CPU = torch.device("cpu")


@pytest.fixture
def four(tiny):
    return replace(
        tiny, hidden_size=4, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2, aux_loss_alpha=1.0
    )


def make_router(config, *, state=None):
    counter = LayerCounter(4, torch.float64)
    router = Router(config, dtype=torch.float64, state=state or StepState(), counter=counter)
    with torch.no_grad():
        router.weight.copy_(torch.eye(4))
        router.e_score_correction_bias.zero_()
    return router, counter


def logits(num_tokens):
    return torch.log(SCORES / (1 - SCORES)).expand(1, num_tokens, 4)


def test_value_of_equations_17_to_20_c13(four):
    router, counter = make_router(four)
    router(logits(4), None, None)
    counters = stack_counters([counter], CPU, 4)
    assert counters.balance_sum.item() / 4 == pytest.approx(1.4)
    assert counters.tokens_per_expert.tolist() == [[4, 4, 0, 0]]


def test_padding_is_in_neither_count_nor_mean_c17(four):
    router, counter = make_router(four)
    x = logits(4).clone()
    x[0, 2:] = 7.0
    router(x, torch.tensor([[True, True, False, False]]), None)
    assert stack_counters([counter], CPU, 4).balance_sum.item() / 2 == pytest.approx(1.4)


def test_a_sequence_of_padding_alone_adds_zero():
    scores = SCORES.expand(2, 3, 4)
    valid = torch.tensor([[True] * 3, [False] * 3])
    counts = torch.tensor([[3, 3, 0, 0], [0, 0, 0, 0]])
    assert balance_sum(scores, counts, valid, top_k=2, alpha=1.0).item() == pytest.approx(3 * 1.4)


def test_perfect_balance_is_one():
    scores = torch.full((1, 4, 4), 0.3, dtype=torch.float64)
    assert balance_sum(scores, torch.full((1, 4), 2), None, top_k=2, alpha=1.0).item() == pytest.approx(4.0)


@pytest.mark.parametrize("valid_tokens", [0, 4])
def test_recomputed_layers_count_once_c16(four, valid_tokens):
    state = StepState(valid_tokens=valid_tokens)
    router, counter = make_router(four, state=state)
    x = logits(4).clone().requires_grad_()
    _ids, gates = checkpoint(router, x, None, None, use_reentrant=False)
    gates.sum().backward()
    counters = stack_counters([counter], CPU, 4)
    assert counters.balance_sum.item() / 4 == pytest.approx(1.4)
    assert counters.tokens_per_expert.sum() == 8


def test_evaluation_counts_nothing(four):
    router, counter = make_router(four)
    router.eval()
    router(logits(4), None, None)
    assert stack_counters([counter], CPU, 4).tokens_per_expert.sum() == 0


def test_counting_can_be_switched_off(four):
    state = StepState(counting=False)
    router, counter = make_router(four, state=state)
    router(logits(4), None, None)
    assert stack_counters([counter], CPU, 4).tokens_per_expert.sum() == 0


def test_raw_top_k_can_be_counted_in_place_of_the_selection(four):
    config = replace(four, aux_loss_selection="scores")
    router, counter = make_router(config)
    with torch.no_grad():
        router.e_score_correction_bias.copy_(torch.tensor([0.0, 0.0, 1.0, 1.0]))
    router(logits(4), torch.tensor([[True, True, True, False]]), None)
    counters = stack_counters([counter], CPU, 4)
    assert counters.tokens_per_expert.tolist() == [[0, 0, 3, 3]]
    assert counters.balance_sum.item() / 3 == pytest.approx(1.4)


def test_injected_gradient_is_that_of_the_loss_added_to_the_total(four):
    x = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    state = StepState()
    state.begin(loss_tokens=10, mtp_tokens=(), valid_tokens=10)
    router, _counter = make_router(four, state=state)
    _ids, gates = router(x, None, None)
    (gates**2).sum().backward()

    plain, _ = make_router(four)
    same_ids, same_gates = plain(x, None, None)
    scores = torch.sigmoid(x @ plain.weight.T)
    counts = torch.stack([same_ids.view(2, -1)[row].bincount(minlength=4) for row in range(2)])
    loss = (same_gates**2).sum() + balance_sum(scores, counts, None, top_k=2, alpha=1.0) / 10
    loss.backward()
    torch.testing.assert_close(router.weight.grad, plain.weight.grad, rtol=1e-12, atol=0)


def test_injection_changes_no_value_and_ignores_the_size_of_what_reaches_the_carrier():
    carrier = torch.ones(3, requires_grad=True)
    loss = torch.tensor(2.0, requires_grad=True)
    out = inject(carrier, loss * 5)
    assert torch.equal(out, carrier)
    (out * 100).sum().backward()
    assert loss.grad.item() == 5.0
    assert carrier.grad.tolist() == [100.0] * 3
