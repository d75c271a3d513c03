"""Parameters and FLOPs against the published models, and against a real module tree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counts import count_parameters, flops_per_token

V3 = DeepSeekV3Config(
    vocab_size=129280, hidden_size=7168, num_hidden_layers=61, first_k_dense_replace=3, intermediate_size=18432,
    moe_intermediate_size=2048, n_routed_experts=256, num_experts_per_tok=8, n_shared_experts=1,
    num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
    v_head_dim=128, n_group=8, topk_group=4, max_position_embeddings=4096, num_nextn_predict_layers=1,
)  # fmt: skip
V2_LITE = replace(
    V3, vocab_size=102400, hidden_size=2048, num_hidden_layers=27, first_k_dense_replace=1, intermediate_size=10944,
    moe_intermediate_size=1408, n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2,
    num_attention_heads=16, q_lora_rank=None, n_group=1, topk_group=1, num_nextn_predict_layers=0,
    scoring_func="softmax", topk_method="greedy",
)  # fmt: skip
MOONLIGHT = replace(V2_LITE, vocab_size=163840, intermediate_size=11264, topk_method="noaux_tc")


@pytest.mark.parametrize(
    ("config", "attention", "expert", "total", "activated_billions"),
    [
        (V3, 187_105_280, 44_040_192, 671_026_419_200, 37.55),
        (V2_LITE, 13_762_560, 8_650_752, 15_706_484_224, 2.66),
        (MOONLIGHT, 13_762_560, 8_650_752, 15_960_110_208, 2.91),
    ],
    ids=["v3", "v2_lite", "moonlight"],
)
def test_counts_of_published_models(config, attention, expert, total, activated_billions):
    counts = count_parameters(config)
    assert (counts.attention, counts.expert, counts.total) == (attention, expert, total)
    assert counts.activated / 1e9 == pytest.approx(activated_billions, abs=0.005)


def test_mtp_module_of_v3():
    counts = count_parameters(V3)
    assert counts.mtp == 11_610_068_224
    # README: 2.4B activated with the shared embedding and head, eh_proj left out
    shared = 2 * V3.vocab_size * V3.hidden_size
    assert (counts.mtp_activated + shared) / 1e9 == pytest.approx(2.54, abs=0.005)


@pytest.mark.parametrize(
    ("config", "giga"),
    [(V3, 260.64), (replace(V3, num_nextn_predict_layers=0), 250.45), (V2_LITE, 16.41), (MOONLIGHT, 17.17)],
    ids=["v3", "v3_without_mtp", "v2_lite", "moonlight"],
)
def test_flops_per_token_at_4096(config, giga):
    assert flops_per_token(config, 4096) / 1e9 == pytest.approx(giga, abs=0.005)


@pytest.mark.parametrize("changes", [{}, {"q_lora_rank": None, "n_shared_experts": 0, "num_nextn_predict_layers": 0}])
def test_formula_equals_the_module_tree(make_model, changes):
    model = make_model(**changes)
    counts = count_parameters(model.config)
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == counts.total + counts.mtp
