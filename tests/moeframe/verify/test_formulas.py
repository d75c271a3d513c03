"""The routing formula agrees with the product's router in every configuration, and names wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import LayerCounter
from moeframe.model.router import Router
from moeframe.model.step_state import StepState
from moeframe.verify.causes import FACTOR_CAUSES, FORMULA_CAUSES, WEIGHT_CAUSES, factor_value
from moeframe.verify.formulas import RouterWatch, bias_findings, load_findings
from moeframe.verify.weights import MEANS

CONFIG = DeepSeekV3Config(
    vocab_size=8,
    hidden_size=6,
    num_hidden_layers=1,
    first_k_dense_replace=0,
    intermediate_size=4,
    moe_intermediate_size=4,
    n_routed_experts=8,
    num_experts_per_tok=3,
    n_shared_experts=0,
    num_attention_heads=1,
    q_lora_rank=None,
    kv_lora_rank=4,
    qk_nope_head_dim=2,
    qk_rope_head_dim=2,
    v_head_dim=2,
    max_position_embeddings=16,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    aux_loss_alpha=0.1,
)
Configured = Callable[..., tuple[Router, RouterWatch]]


def router(kind: type[Router] = Router, **changes: Any) -> tuple[Router, RouterWatch, LayerCounter]:
    config = replace(CONFIG, **changes)
    counter = LayerCounter(config.n_routed_experts, torch.float64)
    made = kind(config, dtype=torch.float64, state=StepState(valid_tokens=10), counter=counter)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        made.weight.normal_(generator=generator)
        if made.e_score_correction_bias is not None:
            made.e_score_correction_bias.uniform_(-0.6, -0.4, generator=generator)
    return made, RouterWatch(nn.ModuleDict({"router": made})), counter


def run(made: Router, valid: torch.Tensor | None = None) -> None:
    x_BSD = torch.randn(2, 12, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    made(x_BSD, valid, None)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"capacity_factor": 0.8},
        {"norm_topk_prob": False},
        {"n_group": 1, "topk_group": 1},
        {"topk_method": "greedy", "n_group": 1, "topk_group": 1, "scoring_func": "softmax"},
        {"topk_method": "group_limited_greedy", "scoring_func": "softmax", "num_experts_per_tok": 2},
        {"aux_loss_selection": "scores"},
    ],
    ids=str,
)
@pytest.mark.parametrize("padded", [False, True])
def test_the_products_router_follows_the_formula(changes: dict[str, Any], padded: bool) -> None:
    made, watch, counter = router(**changes)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[0, 7:] = False
    run(made, valid if padded else None)
    assert not watch.findings
    tokens, balance = watch.take()
    counted, balance_sum, _ = counter.take(torch.device("cpu"))
    assert not load_findings(counted.numpy()[None], numpy.stack([*tokens.values()]))
    assert balance.sum() == pytest.approx(float(balance_sum), rel=1e-12)


class BiasedGates(Router):
    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids_TK, _ = super().forward(*inputs)
        biased_TE = self._scores(inputs[0].flatten(0, 1)) + self.e_score_correction_bias
        gates_TK = biased_TE.gather(1, ids_TK)
        return ids_TK, gates_TK / (gates_TK.sum(-1, keepdim=True) + 1e-20) * 2.5


class NoGroups(Router):
    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        biased_TE = self._scores(inputs[0].flatten(0, 1)) + self.e_score_correction_bias
        return super().forward(inputs[0], None, biased_TE.topk(3, -1).indices.view(2, 12, 3))


class NoBias(Router):
    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        kept, self.e_score_correction_bias = self.e_score_correction_bias, None
        out = super().forward(*inputs)
        self.e_score_correction_bias = kept
        return out


class LastExpert(Router):
    def forward(self, *inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        ids_TK, gates_TK = super().forward(*inputs)
        return (ids_TK + 1) % 8, gates_TK


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        (BiasedGates, "biased gates"),
        (NoGroups, "groups ignored"),
        (NoBias, "bias ignored"),
        (LastExpert, "routing"),
    ],
)
def test_wrong_routings_are_named(kind: type[Router], key: str) -> None:
    made, watch, _ = router(kind)
    run(made)
    assert list(watch.findings) == [key]


def test_c18_a_bias_moves_by_the_sign_of_the_global_loads() -> None:
    before = {"b": numpy.zeros(4)}
    loads = {"b": numpy.asarray([6, 4, 2, 4])}  # of both ranks together
    right, local = numpy.asarray([-1e-3, 0, 1e-3, 0]), numpy.asarray([-1e-3, 0, 1e-3, 1e-3])
    assert not bias_findings(before, {"b": right}, loads, 1e-3)
    (finding,) = bias_findings(before, {"b": local}, loads, 1e-3)
    assert finding.key == "bias step"


def test_c16_loads_counted_twice_are_named() -> None:
    loads = numpy.asarray([[3, 5]])
    assert [one.key for one in load_findings(2 * loads, loads)] == ["loads twice"]
    assert [one.key for one in load_findings(loads + 1, loads)] == ["loads"]


def test_every_row_of_the_tables_can_be_used() -> None:
    sizes = dict.fromkeys(("ep", "edp", "dp", "dp_replicate", "dp_shard", "pp", "world", "micro-batches"), 2.0)
    sizes |= {"recompute": 2.0, "unclipped": 2.0}
    for row in FACTOR_CAUSES:
        assert factor_value(row.factor, sizes) is not None, row
    for _, rule, _ in WEIGHT_CAUSES:
        assert rule in MEANS or factor_value(rule, sizes) is not None, rule
    assert all(why and not why.endswith(".") for why in FORMULA_CAUSES.values())
