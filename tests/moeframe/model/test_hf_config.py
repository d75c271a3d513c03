"""config.json in both spellings, and what is refused."""

from __future__ import annotations

import json

import pytest

from moeframe.errors import UserInputError
from moeframe.model.config import RopeScaling
from moeframe.model.hf_config import differences, parse_hf_config, read_hf_config


@pytest.fixture
def legacy(fixture_dir):
    return json.loads((fixture_dir / "config_legacy.json").read_text())


@pytest.fixture
def modern(fixture_dir):
    return json.loads((fixture_dir / "config.json").read_text())


def parse(values):
    return parse_hf_config(values, where="config.json")


def test_both_spellings_mean_the_same(legacy, modern):
    one, other = parse(legacy), parse(modern)
    assert one == other
    assert (one.dtype, one.fp8_block) == ("float32", None)
    assert (one.model.scoring_func, one.model.topk_method, one.model.norm_topk_prob) == ("sigmoid", "noaux_tc", True)
    assert one.model.rms_norm_eps == 1e-3


YARN = {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
        "mscale_all_dim": 0.707}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "yarn", **YARN}, "rope_theta": 50000.0},
        {"rope_scaling": {"rope_type": "yarn", **YARN}, "rope_theta": 50000.0},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 50000.0, **YARN}},
    ],
)
def test_yarn_is_read_in_every_spelling(legacy, changes):
    model = parse(legacy | changes).model
    assert model.rope_theta == 50000.0
    assert model.rope_scaling == RopeScaling(
        factor=40, original_max_position_embeddings=4096, mscale=0.707, mscale_all_dim=0.707
    )


def test_v2_lite_reads_its_own_defaults(legacy):
    values = {key: value for key, value in legacy.items() if key not in {"scoring_func", "topk_method"}}
    del values["norm_topk_prob"]
    values |= {"model_type": "deepseek_v2", "q_lora_rank": None, "n_group": None, "topk_group": None}
    model = parse(values).model
    assert (model.scoring_func, model.topk_method, model.norm_topk_prob) == ("softmax", "greedy", False)
    assert (model.q_lora_rank, model.n_group, model.topk_group) == (None, 1, 1)


def test_a_missing_balance_coefficient_is_the_reports_c32(modern, legacy):
    assert parse(modern).model.aux_loss_alpha == 1e-4
    assert "aux_loss_alpha" not in parse(modern).given
    assert parse(legacy | {"aux_loss_alpha": 0.0}).model.aux_loss_alpha == 0.0
    assert "aux_loss_alpha" in parse(legacy | {"aux_loss_alpha": 0.0}).given


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("attention_bias", True, "attention_bias = True is not supported, only False"),
        ("tie_word_embeddings", True, "tie_word_embeddings = True"),
        ("hidden_act", "gelu", "hidden_act = 'gelu' is not supported, only 'silu'"),
        ("moe_layer_freq", 2, "moe_layer_freq = 2"),
        ("rope_interleave", False, "rope_interleave = False"),
        ("attention_dropout", 0.1, r"attention_dropout = 0\.1"),
        ("num_key_value_heads", 2, "num_key_value_heads = 2 must equal num_attention_heads = 4"),
        ("scoring_func", "relu", "scoring_func = 'relu' is not one of sigmoid, softmax"),
        ("topk_method", "best", "topk_method = 'best' is not one of noaux_tc"),
        ("rope_scaling", {"type": "linear", "factor": 2}, "rope type 'linear' is not supported"),
        ("rope_scaling", {"type": "yarn", "factor": 2}, "yarn needs original_max_position_embeddings"),
        ("quantization_config", {"quant_method": "gptq"}, "quant_method = 'gptq'"),
        ("n_group", 5, "n_group: 5 does not divide n_routed_experts = 16"),
        ("model_type", "llama", "model_type = 'llama'. Supported: deepseek_v2, deepseek_v3"),
    ],
)
def test_what_changes_the_computation_is_refused(legacy, key, value, message):
    with pytest.raises(UserInputError, match=message):
        parse(legacy | {key: value})


def test_everything_wrong_is_said_at_once(legacy):
    del legacy["hidden_size"], legacy["vocab_size"]
    with pytest.raises(UserInputError) as caught:
        parse(legacy | {"attention_bias": True})
    for part in ("hidden_size is missing", "vocab_size is missing", "attention_bias"):
        assert part in str(caught.value)


def test_the_fp8_block_shape_is_read(legacy):
    section = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]}
    assert parse(legacy | {"quantization_config": section}).fp8_block == (128, 64)


def test_a_directory_without_a_readable_config_is_refused(tmp_path):
    with pytest.raises(UserInputError, match=r"config\.json: cannot be read"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserInputError, match="is not JSON"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(UserInputError, match="must hold a JSON object, not list"):
        read_hf_config(tmp_path)


def test_differences_name_what_changes_a_forward(legacy):
    one = parse(legacy).model
    other = parse(legacy | {"rope_theta": 50000.0, "aux_loss_alpha": 0.5}).model
    assert differences(one, other) == {"rope_theta": (10000.0, 50000.0)}
