"""Products against float64, and their gradients one at a time."""

from __future__ import annotations

import pytest
import torch
from moeframe_transformer_engine.kernels import BlockwiseKernels
from moeframe_transformer_engine.products import product

from moeframe.model.recompute import recomputed
from moeframe.protocols.weight_gradients import postponing

COUNTS = (32, 0, 64, 16)


def tensors(counts=COUNTS, width_in=256, width_out=144):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(sum(counts), width_in, generator=generator).bfloat16().requires_grad_()
    weight = torch.randn(len(counts), width_out, width_in, generator=generator).mul_(0.05).requires_grad_()
    grad = torch.randn(sum(counts), width_out, generator=generator).bfloat16()
    return x, weight, grad


def distance(found, wanted):
    return ((found.double() - wanted).norm() / wanted.norm()).item()


def by_hand(x, weight, grad, counts):
    x, weight = x.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    out = torch.cat([rows @ matrix.T for rows, matrix in zip(x.split(counts), weight, strict=True)])
    return [out.detach(), *torch.autograd.grad(out, [x, weight], grad.double())]


@pytest.mark.parametrize("counts", [COUNTS, (0, 48, 0)])
def test_products_and_gradients_are_those_of_float64(kernels, counts):
    x, weight, grad = tensors(counts)
    out = product(kernels, x, weight, counts)
    out.backward(grad)
    # E4M3 keeps 4 significant bits: 2^-4 / sqrt(3) a factor, two factors.
    bound = 0.08 if isinstance(kernels, BlockwiseKernels) else 2**-7
    for found, wanted in zip([out, x.grad, weight.grad], by_hand(x, weight, grad, counts), strict=True):
        assert distance(found, wanted) < bound
    assert out.dtype == x.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32
    assert all(weight.grad[place].eq(0).all() for place, count in enumerate(counts) if not count)


def test_outputs_are_no_views(kernels):
    """fully_shard hangs its hooks on what a module returns."""
    x, weight, _ = tensors((16,))
    assert not product(kernels, x.view(2, 8, -1), weight[0])._is_view()


def test_no_rows_give_zero_gradients(kernels, fake):
    x, weight, grad = tensors((0, 0))
    out = product(kernels, x, weight, (0, 0))
    out.backward(grad)
    assert out.shape == (0, 144)
    assert x.grad.shape == x.shape
    assert weight.grad.eq(0).all()
    assert not fake.calls


def test_each_gradient_is_computed_apart_and_equal(kernels, fake):
    x, weight, grad = tensors()
    product(kernels, x, weight, COUNTS).backward(grad)
    out = product(kernels, x, weight, COUNTS)
    fake.calls.clear()
    (for_x,) = torch.autograd.grad(out, x, grad, retain_graph=True)
    assert fake.calls == [("grouped", "NN")]
    fake.calls.clear()
    (for_weight,) = torch.autograd.grad(out, weight, grad)
    assert fake.calls == [("grouped", "NT")]
    assert torch.equal(for_x, x.grad)
    assert torch.equal(for_weight, weight.grad)


def test_weight_gradients_wait_for_whoever_postpones_them(kernels, fake):
    x, weight, grad = tensors()
    product(kernels, x, weight, COUNTS).backward(grad)
    wanted, x.grad, weight.grad = (x.grad, weight.grad), None, None
    out = product(kernels, x, weight, COUNTS)
    fake.calls.clear()
    with postponing() as waiting:
        out.backward(grad)
    assert fake.calls == [("grouped", "NN")]
    assert torch.equal(x.grad, wanted[0])
    assert weight.grad is None
    waiting.run()
    assert fake.calls == [("grouped", "NN"), ("grouped", "NT")]
    assert torch.equal(weight.grad, wanted[1])


@pytest.mark.parametrize("frozen", ["x", "weight"])
def test_what_needs_no_gradient_gets_none_and_saves_nothing(kernels, fake, frozen):
    x, weight, grad = tensors()
    {"x": x, "weight": weight}[frozen].requires_grad_(False)
    out = product(kernels, x, weight, COUNTS)
    fake.calls.clear()
    out.backward(grad)
    assert fake.calls == [("grouped", "NT" if frozen == "x" else "NN")]


def test_fp8_keeps_one_byte_for_a_value_of_the_input_and_no_cast_weights(fake):
    saved = []

    def keep(tensor):
        saved.append(tensor)
        return tensor

    x, weight, _ = tensors()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        product(BlockwiseKernels(fake.engine), x, weight, COUNTS)
    values = [tensor for tensor in saved if tensor.dtype == torch.uint8]
    assert sum(value.numel() for value in values) == x.numel()
    # tiles run along the rows here: the transposed form
    assert [tuple(value.shape) for value in values] == [(256, count) for count in COUNTS if count]
    assert not any(tensor.data_ptr() == x.data_ptr() for tensor in saved if tensor.numel())
    assert [tensor.data_ptr() for tensor in saved if tensor.shape == weight.shape] == [weight.data_ptr()]


def test_recomputing_gives_the_same_gradients(kernels):
    x, weight, grad = tensors()
    product(kernels, x, weight, COUNTS).backward(grad)
    wanted, x.grad, weight.grad = (x.grad, weight.grad), None, None
    recomputed("region", lambda rows: product(kernels, rows, weight, COUNTS), x).backward(grad)
    assert torch.equal(x.grad, wanted[0])
    assert torch.equal(weight.grad, wanted[1])


def test_inputs_and_gradients_of_any_strides_are_taken(kernels):
    x, weight, grad = tensors()
    product(kernels, x, weight, COUNTS).backward(grad)
    wanted, weight.grad = (x.grad, weight.grad), None
    across = x.detach().T.contiguous().T.requires_grad_()
    product(kernels, across, weight, COUNTS).backward(grad.T.contiguous().T)
    assert torch.equal(across.grad, wanted[0])
    assert torch.equal(weight.grad, wanted[1])


def test_an_expanded_gradient_is_taken(kernels):
    x, weight, _ = tensors()
    product(kernels, x, weight, COUNTS).sum().backward()
    assert x.grad.isfinite().all()
