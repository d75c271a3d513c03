"""Weight gradients that wait: the same numbers, added where they belong."""

from __future__ import annotations

import pytest
import torch

from moeframe.protocols.weight_gradients import postponing

CASES = [("grouped_mm", torch.float32), ("loop", torch.float64)]
COUNTS = (3, 0, 2, 4)


def run(experts, *, seed: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(COUNTS), 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    gates = torch.rand(sum(COUNTS), generator=generator, dtype=torch.float64)
    gates = gates.to(torch.promote_types(dtype, torch.float32)).requires_grad_()
    return rows, gates, experts(rows, gates, torch.tensor(COUNTS), COUNTS).square().sum()


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_postponed_weight_gradients_are_those_of_a_whole_backward(make_experts, kind, dtype) -> None:
    whole, split = make_experts(kind, dtype), make_experts(kind, dtype)
    for seed in (1, 2):  # the second time there are gradients to add to
        *wanted, loss = run(whole, seed=seed, dtype=dtype)
        loss.backward()
        *found, loss = run(split, seed=seed, dtype=dtype)
        before = [None if p.grad is None else p.grad.clone() for p in split.parameters()]
        with postponing() as later:
            loss.backward()
        assert len(later) == 2
        for mine, theirs in zip(found, wanted, strict=True):
            assert torch.equal(mine.grad, theirs.grad)
        for parameter, old in zip(split.parameters(), before, strict=True):
            assert (parameter.grad is None) if old is None else torch.equal(parameter.grad, old)
        later.run()
        assert len(later) == 0
        for mine, theirs in zip(split.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-6 if dtype == torch.float32 else 1e-14, atol=0)


@pytest.mark.parametrize("kind", ["grouped_mm", "loop"])
def test_gradients_of_bfloat16_products_add_up_in_the_weights_float32(make_experts, kind) -> None:
    experts = make_experts(kind, torch.float32)
    for seed in (1, 2):
        *_, loss = run(experts, seed=seed, dtype=torch.bfloat16)
        with postponing() as later:
            loss.backward()
        later.run()
    assert all(parameter.grad.dtype == torch.float32 for parameter in experts.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in experts.parameters())


@pytest.mark.parametrize("kind", ["grouped_mm", "loop"])
def test_a_weight_that_is_computed_itself_has_its_gradient_at_once(make_experts, kind) -> None:
    experts = make_experts(kind, torch.float32)
    source = experts.gate_up_proj.detach().clone().requires_grad_()
    weights = {"gate_up_proj": source * 1, "down_proj": experts.down_proj}

    def call(*args):
        return torch.func.functional_call(experts, weights, args)

    *_, loss = run(call, seed=1, dtype=torch.float32)
    with postponing() as later:
        loss.backward()
    assert source.grad is not None
    assert len(later) == 1


def test_frozen_weights_and_inputs_have_no_gradient(make_experts) -> None:
    experts = make_experts("loop", torch.float64)
    experts.gate_up_proj.requires_grad_(False)
    rows, _, loss = run(experts, seed=1, dtype=torch.float64)
    loss.backward()
    assert experts.gate_up_proj.grad is None
    assert rows.grad is not None
