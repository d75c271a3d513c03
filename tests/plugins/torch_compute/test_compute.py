"""Linears, norms and attention."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from moeframe_torch_compute.compute import TorchCompute, attention
from moeframe_torch_compute.experts import GroupedMMExperts, LoopExperts
from moeframe_torch_compute.options import TorchComputeOptions

from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.compute import Compute, ComputeContext
from moeframe.protocols.precision import Precision


def build(precision="float32", **options):
    context = ComputeContext(precision=Precision.of(precision), device=torch.device("cpu"))
    return TorchCompute(TorchComputeOptions(**options), context)


def test_the_offer_builds_a_compute():
    offer = Catalog(build_plugin_manager()).resolve("compute", "torch")
    context = ComputeContext(precision=Precision.of("float64"), device=torch.device("cpu"))
    assert isinstance(offer.build(offer.options(), context), Compute)
    traits = offer.traits(offer.options(), Precision.of("bfloat16"))
    assert traits.saves_expert_input
    assert traits.row_multiple == 1


def test_offering_imports_no_torch():
    code = (
        "import sys, moeframe_torch_compute.plugin as p; p.moeframe_offer_computes(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parameters_are_made_on_the_current_device_in_the_parameters_dtype():
    compute = build("bfloat16")
    with torch.device("meta"):
        modules = [compute.linear(4, 8), compute.rms_norm(4, 1e-6), compute.grouped_experts(2, 8, 16)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    assert all(parameter.is_meta and parameter.dtype == torch.float32 for parameter in parameters)
    assert [tuple(parameter.shape) for parameter in parameters] == [(8, 4), (4,), (2, 32, 8), (2, 8, 16)]


def test_the_option_chooses_the_product():
    assert isinstance(build().grouped_experts(2, 8, 16), GroupedMMExperts)
    assert isinstance(build("float64").grouped_experts(2, 8, 16), LoopExperts)
    assert isinstance(build(grouped_mm="never").grouped_experts(2, 8, 16), LoopExperts)


def test_a_linear_computes_in_the_dtype_of_its_input():
    linear = build("bfloat16").linear(4, 8)
    torch.nn.init.normal_(linear.weight)
    x = torch.randn(3, 4).bfloat16()
    out = linear(x)
    assert out.dtype == torch.bfloat16
    assert torch.equal(out, x @ linear.weight.bfloat16().T)
    out.sum().backward()
    assert linear.weight.grad.dtype == torch.float32


def test_norm_statistics_are_float32_for_bfloat16_input():
    norm = build("bfloat16").rms_norm(4096, 1e-6)
    torch.nn.init.ones_(norm.weight)
    x = torch.full((1, 4096), 1.0)
    x[0, 0] = 16.0
    # mean of squares 1.0623; summed in bfloat16 the ones would be lost beside 256
    wanted = x / math.sqrt((4095 + 256) / 4096)
    torch.testing.assert_close(norm(x.bfloat16()).float(), wanted, rtol=2**-8, atol=0)


def test_norm_in_float64_is_exact():
    norm = build("float64").rms_norm(6, 1e-3)
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 6, dtype=torch.float64)
    wanted = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-3) * norm.weight
    torch.testing.assert_close(norm(x), wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("value_size", [4, 6, 8])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_is_the_softmax_of_scaled_scores(value_size, masked):
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 5, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    v = torch.randn(2, 3, 5, value_size, dtype=torch.float64, generator=generator)
    mask = torch.ones(5, 5, dtype=torch.bool).tril().expand(2, 1, 5, 5).clone()
    if masked:
        mask[0, :, 2:, 1] = False
    scores = (q @ k.transpose(-1, -2) * 0.7).masked_fill(~mask, -math.inf)
    out = attention(q, k, v, scale=0.7, mask=mask if masked else None)
    torch.testing.assert_close(out, scores.softmax(-1) @ v, rtol=0, atol=1e-14)


def test_attention_softmax_is_at_least_float32():
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, 512, 8, generator=generator).bfloat16() for _ in range(3))
    hidden = torch.full((512, 512), -math.inf).triu(1)
    wanted = (q.double() @ k.double().transpose(-1, -2) + hidden).softmax(-1) @ v.double()
    out = attention(q, k, v, scale=1.0, mask=None)
    assert (out.double() - wanted).abs().max() < 2**-6
