"""The conformance kit: each fault that a compute backend can have is found, and its message names what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from moeframe_torch_compute import plugin
from moeframe_torch_compute.compute import TorchCompute
from torch import nn

from moeframe.hooks import ComputeOffer
from moeframe.testing import compute_checks as checks

(OFFER,) = plugin.moeframe_offer_computes()


def subject(offer: ComputeOffer = OFFER, dtype: Any = "float64", **fields: Any) -> checks.Subject:
    return checks.Subject(offer=offer, options={}, device="cpu", dtype=dtype, **fields)


CHECKS: dict[str, Callable[[checks.Subject], None]] = {
    "parameters": checks.check_parameters,
    "linear": partial(checks.check_linear, leading=(3, 5)),
    "norm": checks.check_norm,
    **{f"experts, {name}": partial(checks.check_experts, name=name, on_host=True) for name in checks.ROWS},
    "attention": partial(checks.check_attention, value_size=8, masked=False),
    "masked": partial(checks.check_attention, value_size=8, masked=True),
    "freed inputs": checks.check_freed_inputs,
    "freed outputs": checks.check_freed_outputs,
    "postponed": checks.check_postponed_weights,
}


@pytest.mark.parametrize("name", sorted(CHECKS.keys() - {"freed inputs"}))  # plain torch says that it saves them
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_plain_torch_keeps_the_protocol(name: str, dtype: str) -> None:
    CHECKS[name](subject(dtype=dtype))


class Wrapped(nn.Module):
    """A module with a fault in what it returns."""

    def __init__(self, inner: nn.Module, change: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.change = change
        for name, parameter in inner.named_parameters():
            self.register_parameter(name, parameter)
        self.inner = [inner]  # no submodule: names stay

    def forward(self, *inputs: Any) -> torch.Tensor:
        return self.change(self.inner[0], *inputs)


class Faulty(TorchCompute):
    changes: dict[str, Callable[..., torch.Tensor]]

    def _wrapped(self, name: str, module: nn.Module) -> nn.Module:
        return Wrapped(module, self.changes[name]) if name in self.changes else module

    def linear(self, *sizes: int) -> nn.Module:
        return self._wrapped("linear", super().linear(*sizes))

    def rms_norm(self, size: int, eps: float) -> nn.Module:
        return self._wrapped("norm", super().rms_norm(size, eps))

    def grouped_experts(self, *sizes: int) -> nn.Module:
        return self._wrapped("experts", super().grouped_experts(*sizes))

    def attention(self, q: Any, k: Any, v: Any, *, scale: float, mask: Any) -> torch.Tensor:
        if "attention" in self.changes:
            return self.changes["attention"](q, k, v, scale, mask)
        return super().attention(q, k, v, scale=scale, mask=mask)


def faulty(name: str, change: Callable[..., torch.Tensor], **traits: bool) -> ComputeOffer:
    def build(options: Any, context: Any) -> TorchCompute:
        compute = Faulty(options, context)
        compute.changes = {name: change}
        return compute

    return replace(OFFER, build=build, traits=lambda *given: replace(plugin._traits(*given), **traits))


def half(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16()


def everything(q: Any, k: Any, v: Any, scale: float, mask: Any) -> torch.Tensor:
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


FAULTS = {
    "another dtype": ("linear", "linear", lambda inner, x: inner(x).float(), {}, "the output has torch.float32"),
    "a product that is off": ("linear", "linear", lambda inner, x: inner(x) * 1.001, {}, "the output lies 0.001"),
    "a gradient that is missing": ("linear", "linear", lambda inner, x: inner(x.detach()), {}, "input 0 is missing"),
    "statistics in bfloat16": (
        "norm",
        "norm",
        lambda inner, x: x / (half(x * x).cumsum(-1, dtype=torch.bfloat16)[..., -1:] / x.shape[-1]).sqrt().to(x.dtype),
        {},
        "the output lies",
    ),
    "gates left out": (
        "experts",
        "experts, even",
        lambda inner, rows, gates, *counts: inner(rows, torch.ones_like(gates), *counts),
        {},
        "the output lies",
    ),
    "spare rows that come back": (
        "experts",
        "experts, spare rows",
        lambda inner, rows, *rest: inner(rows, *rest) + rows.isnan(),
        {},
        "beyond the counts did not come back as zeros",
    ),
    "no mask": ("attention", "attention", everything, {}, "the output lies"),
    "the trait saves_expert_input": (
        "experts",
        "freed inputs",
        lambda inner, *inputs: inner(*inputs),
        {"saves_expert_input": False},
        "saves_expert_input is false, and",
    ),
    "the trait saves_expert_output": (
        "experts",
        "freed outputs",
        lambda inner, *inputs: inner(*inputs).exp(),
        {},
        "saves_expert_output is false, and",
    ),
    "the trait saves_norm_output": ("norm", "freed outputs", lambda inner, x: inner(x).exp(), {}, "saves_norm_output"),
    "the trait splits_expert_backward": (
        "experts",
        "postponed",
        lambda inner, *inputs: inner(*inputs) + 0 * sum(p.sum() for p in inner.parameters()),
        {},
        "has its gradient before it was asked for",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found_and_named(fault: str) -> None:
    part, check, change, traits, words = FAULTS[fault]
    with pytest.raises(AssertionError, match=words):
        CHECKS[check](subject(faulty(part, change, **traits)))


def test_the_distance_is_the_suites() -> None:
    offer = faulty("linear", lambda inner, x: inner(x) * 1.001)
    CHECKS["linear"](subject(offer, distance=0.01))
