"""Routed experts, by grouped_mm and one by one."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_compute.experts import takes_grouped_mm

from moeframe.errors import ContractError

CASES = [("grouped_mm", torch.float32), ("loop", torch.float32), ("loop", torch.float64)]


def by_hand(experts, rows, gates, counts):
    """Each row on its own, in float64."""
    out = torch.zeros(rows.shape, dtype=torch.float64)
    row = 0
    for expert, count in enumerate(counts):
        gate, up = experts.gate_up_proj[expert].double().chunk(2)
        for _ in range(count):
            x = rows[row].double()
            hidden = torch.nn.functional.silu(gate @ x) * (up @ x) * gates[row].double()
            out[row] = experts.down_proj[expert].double() @ hidden
            row += 1
    return out


def inputs(num_rows, dtype):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(num_rows, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    gates = torch.rand(num_rows, generator=generator, dtype=torch.float64)
    return rows, gates.to(torch.promote_types(dtype, torch.float32)).requires_grad_()


@pytest.mark.parametrize(("kind", "dtype"), CASES)
@pytest.mark.parametrize("counts", [(3, 0, 2, 4), (0, 0, 9, 0), (1, 1, 1, 1), (0, 0, 0, 0)])
@pytest.mark.parametrize("spare", [0, 3])
@pytest.mark.parametrize("on_host", [True, False])
def test_rows_pass_their_expert_and_spare_rows_nothing(make_experts, kind, dtype, counts, spare, on_host):
    experts = make_experts(kind, dtype)
    rows, gates = inputs(sum(counts) + spare, dtype)
    with torch.no_grad():
        rows[sum(counts) :] = torch.nan
        gates[sum(counts) :] = torch.nan
    out = experts(rows, gates, torch.tensor(counts), counts if on_host else None)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-13
    wanted = by_hand(experts, rows.detach().nan_to_num(), gates.detach().nan_to_num(), counts)
    torch.testing.assert_close(out.double(), wanted, rtol=0, atol=tolerance)
    (out**2).sum().backward()
    found = [rows.grad, gates.grad, experts.gate_up_proj.grad, experts.down_proj.grad]
    for gradient in found:
        assert gradient.isfinite().all()
    assert rows.grad[sum(counts) :].eq(0).all()
    assert gates.grad[sum(counts) :].eq(0).all()

    exact = make_experts("loop", torch.float64)
    rows2, gates2 = rows.detach().nan_to_num().double(), gates.detach().nan_to_num().double()
    rows2.requires_grad_(), gates2.requires_grad_()
    leaves = [rows2, gates2, exact.gate_up_proj, exact.down_proj]
    if not sum(counts):
        assert all(gradient.eq(0).all() for gradient in found)
        return
    wanted = torch.autograd.grad((by_hand(exact, rows2, gates2, counts) ** 2).sum(), leaves)
    for gradient, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient.double(), right, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("kind", ["grouped_mm", "loop"])
def test_a_sum_over_outputs_can_be_differentiated(make_experts, kind):
    """Its gradient is one number expanded, which grouped_mm's backward does not take as it is."""
    experts = make_experts(kind, torch.float32)
    rows, gates = inputs(4, torch.float32)
    experts(rows, gates, torch.tensor([1, 1, 1, 1]), (1, 1, 1, 1)).sum().backward()
    assert rows.grad.abs().sum() > 0


@pytest.mark.parametrize("kind", ["grouped_mm", "loop"])
def test_gates_are_multiplied_in_float32_before_rounding(make_experts, kind):
    experts = make_experts(kind, torch.float32)
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(64, 8, generator=generator).bfloat16()
    gates = torch.rand(64, generator=generator)
    counts = (16, 16, 16, 16)
    out = experts(rows, gates, torch.tensor(counts), counts)
    assert out.dtype == torch.bfloat16
    rounded = make_experts(kind, torch.float32)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.copy_(parameter.bfloat16())
    exact = by_hand(rounded, rows, gates, counts)
    coarse = by_hand(rounded, rows, gates.bfloat16(), counts)
    assert (out.double() - exact).abs().mean() < (out.double() - coarse).abs().mean()


@pytest.mark.parametrize(
    ("wish", "dtype", "sizes", "answer"),
    [
        ("auto", torch.float32, (8, 16), True),
        ("auto", torch.float32, (6, 16), False),
        ("auto", torch.bfloat16, (8, 16), True),
        ("auto", torch.bfloat16, (8, 12), False),
        ("auto", torch.float64, (8, 16), False),
        ("always", torch.float32, (8, 12), True),
        ("always", torch.float64, (8, 16), False),
        ("never", torch.float32, (8, 16), False),
    ],
)
def test_which_product_is_used_depends_on_dtype_and_sizes(wish, dtype, sizes, answer):
    assert takes_grouped_mm(wish, dtype, hidden_size=sizes[0], intermediate_size=sizes[1]) is answer


def test_demanding_grouped_mm_for_sizes_it_cannot_take_is_refused():
    with pytest.raises(ContractError, match=r"moe_intermediate_size = 12 must be multiples of 8.*12 is not"):
        takes_grouped_mm("always", torch.bfloat16, hidden_size=8, intermediate_size=12)
