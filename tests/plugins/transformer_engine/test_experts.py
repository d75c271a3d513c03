"""Routed experts with filled-up rows, against one product an expert."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_compute.experts import LoopExperts
from moeframe_transformer_engine.experts import TransformerEngineExperts
from moeframe_transformer_engine.kernels import BlockwiseKernels
from moeframe_transformer_engine.padding import Padding

HIDDEN, WIDTH = 128, 64


def make(kernels, num_experts):
    experts = TransformerEngineExperts(num_experts, HIDDEN, WIDTH, torch.float32, kernels)
    exact = LoopExperts(num_experts, HIDDEN, WIDTH, torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for ours, other in zip(experts.parameters(), exact.parameters(), strict=True):
            ours.copy_(torch.randn(ours.shape, generator=generator) * 0.1)
            other.copy_(ours)
    return experts, exact


def distance(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("counts", [(33, 0, 64, 17), (16, 32, 0, 0), (1, 1, 1, 1)])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("on_host", [True, False])
def test_rows_pass_their_expert_and_spare_rows_nothing(kernels, counts, spare, on_host):
    experts, exact = make(kernels, len(counts))
    generator = torch.Generator().manual_seed(1)
    used = sum(counts)
    rows = torch.randn(used + spare, HIDDEN, generator=generator).bfloat16()
    gates = torch.rand(used + spare, generator=generator)
    grad = torch.randn(used + spare, HIDDEN, generator=generator).bfloat16()
    inputs = [rows[:used].double().requires_grad_(), gates[:used].double().requires_grad_()]
    wanted = exact(*inputs, torch.tensor(counts), counts)
    wanted.backward(grad[:used].double())
    rows[used:] = gates[used:] = torch.nan
    rows.requires_grad_(), gates.requires_grad_()
    out = experts(rows, gates, torch.tensor(counts), counts if on_host else None)
    out.backward(grad)
    assert out[used:].eq(0).all()
    assert rows.grad[used:].eq(0).all()
    assert gates.grad[used:].eq(0).all()
    bound = 0.12 if isinstance(kernels, BlockwiseKernels) else 0.01
    pairs = [(out[:used], wanted), (rows.grad[:used], inputs[0].grad), (gates.grad[:used], inputs[1].grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(experts.parameters(), exact.parameters(), strict=True)]
    for found, right in pairs:
        assert distance(found, right) < bound


@pytest.mark.parametrize("num_rows", [0, 5])
def test_experts_without_rows_return_zeros_and_get_zero_gradients(kernels, num_rows):
    experts, _ = make(kernels, 2)
    rows = torch.full((num_rows, HIDDEN), torch.nan).bfloat16().requires_grad_()
    gates = torch.full((num_rows,), torch.nan, requires_grad=True)
    out = experts(rows, gates, torch.zeros(2, dtype=torch.int64), (0, 0))
    out.sum().backward()
    assert out.shape == rows.shape
    assert all(parameter.grad.eq(0).all() for parameter in experts.parameters())
    assert rows.grad.eq(0).all()


def test_parameters_have_the_names_and_shapes_that_everyone_knows(kernels):
    experts, exact = make(kernels, 3)
    assert [(name, p.shape) for name, p in experts.named_parameters()] == [
        (name, p.shape) for name, p in exact.named_parameters()
    ]


@pytest.mark.parametrize("counts", [(5, 0, 16, 17), (0, 0, 1), (16, 32)])
def test_filling_leaves_rows_in_order_and_zeros_between(counts):
    padding = Padding.of(torch.tensor(counts, dtype=torch.int32), counts, 16)
    rows = torch.arange(1.0, sum(counts) + 1).unsqueeze(1).requires_grad_()
    filled = padding.fill(rows)
    assert padding.counts == tuple((count + 15) // 16 * 16 for count in counts)
    start = 0
    for part, count in zip(filled.split(padding.counts), counts, strict=True):
        assert part[:count, 0].tolist() == list(range(start + 1, start + count + 1))
        assert part[count:].eq(0).all()
        start += count
    taken = padding.take(filled)
    assert torch.equal(taken, rows)
    taken.backward(2 * rows.detach())
    assert torch.equal(rows.grad, 2 * rows.detach())
