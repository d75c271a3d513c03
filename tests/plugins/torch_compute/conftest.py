"""Experts of every kind on one set of rows."""

from __future__ import annotations

import pytest
import torch
from moeframe_torch_compute.experts import GroupedMMExperts, LoopExperts

KINDS = {"grouped_mm": GroupedMMExperts, "loop": LoopExperts}


@pytest.fixture
def make_experts():
    def make(kind, dtype, num_experts=4, hidden=8, intermediate=16):
        experts = KINDS[kind](num_experts, hidden, intermediate, dtype)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in experts.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
        return experts

    return make
