from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest

from moeframe.config.rules import recipe_problems
from moeframe.model.hf_config import read_hf_config


def paths(base, *overrides: str) -> list[str]:
    return [problem.path for problem in recipe_problems(base(*overrides).recipe)]


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "moe_intermediate_size",
        "num_experts_per_tok",
        "num_attention_heads",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "n_group",
        "topk_group",
        "routed_scaling_factor",
        "rope_theta",
        "rms_norm_eps",
        "initializer_range",
        "capacity_factor",
    ],
)
def test_a_dimension_of_zero_is_refused(base, key) -> None:
    assert paths(base, f"model.{key}=0") == [f"model.{key}"]


def test_a_dimension_beyond_any_machine_is_refused_at_once(base) -> None:
    assert paths(base, "model.n_routed_experts=99999999999999999999") == ["model.n_routed_experts"]


@pytest.mark.parametrize("key", ["mtp_loss_weight", "aux_loss_alpha", "bias_update_speed", "n_shared_experts"])
def test_what_may_be_zero_may_not_be_negative(base, key) -> None:
    assert paths(base, f"model.{key}=0") == []
    assert paths(base, f"model.{key}=-1") == [f"model.{key}"]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (
            ["model.first_k_dense_replace=3"],
            "model.first_k_dense_replace: given 3; must not exceed num_hidden_layers = 2. Use 2 or less.",
        ),
        (
            ["model.qk_rope_head_dim=5"],
            "model.qk_rope_head_dim: given 5; must be even: rotary embedding turns pairs. Use 4 or 6.",
        ),
        (["model.n_group=3"], "model.n_group: given 3; must divide n_routed_experts = 8. Legal: 1, 2, 4, 8."),
        (
            ["model.n_group=4", "model.topk_group=5"],
            "model.topk_group: given 5; must not exceed n_group = 4. Use 4 or less.",
        ),
        (
            ["model.num_experts_per_tok=9"],
            "model.num_experts_per_tok: given 9; must not exceed the 8 experts that a token may "
            "reach (topk_group 1 x 8 "
            "experts of a group). Use 8 or less, or raise topk_group.",
        ),
        (
            ["model.n_group=4", "model.num_experts_per_tok=3"],
            "model.num_experts_per_tok: given 3; must not exceed the 2 experts that a token may "
            "reach (topk_group 1 x 2 "
            "experts of a group). Use 2 or less, or raise topk_group.",
        ),
        (
            ["model.n_group=8", "model.topk_group=4"],
            "model.n_group: given 8, which leaves 1 expert in a group; topk_method noaux_tc scores a group by its two "
            "best experts. Use 4 or less, or topk_method group_limited_greedy.",
        ),
        (
            ["model.n_group=2", "model.topk_method=greedy"],
            "model.n_group: given 2, but topk_method greedy knows no groups. Use n_group 1 and topk_group 1, or "
            "topk_method group_limited_greedy.",
        ),
    ],
)
def test_dimensions_that_do_not_fit_name_the_rule_and_the_way_out(base, overrides, line) -> None:
    assert [str(problem) for problem in recipe_problems(base(*overrides).recipe)] == [line]


@pytest.mark.parametrize(
    ("scaling", "path"),
    [
        ("factor: 0.5", "factor"),
        ("factor: 40, beta_fast: 1", "beta_fast"),
        ("factor: 40, beta_slow: 0", "beta_fast"),
        ("factor: 40, mscale: -1", "mscale"),
        ("factor: 40, mscale_all_dim: .nan", "mscale_all_dim"),
    ],
)
def test_yarn_numbers_are_checked(base, scaling, path) -> None:
    given = f"model.rope_scaling={{original_max_position_embeddings: 16, {scaling}}}"
    assert paths(base, given) == [f"model.rope_scaling.{path}"]


def test_the_layouts_of_the_family_are_legal(base) -> None:
    v2_lite = ("scoring_func=softmax", "topk_method=greedy", "norm_topk_prob=false", "q_lora_rank=null")
    v2 = ("scoring_func=softmax", "topk_method=group_limited_greedy", "n_group=4", "topk_group=2")
    v3 = ("n_group=4", "topk_group=2", "num_experts_per_tok=4", "routed_scaling_factor=2.5")
    for settings in (v2_lite, v2, v3, ("n_shared_experts=0",), ("first_k_dense_replace=0",)):
        assert paths(base, *(f"model.{setting}" for setting in settings)) == []


@pytest.fixture
def weights(request, tmp_path) -> dict[str, str]:
    """Put a Hugging Face directory at `weights`; return what a recipe for it says of the model."""
    shutil.copytree(request.path.parents[2] / "data" / "dsv3_parity", tmp_path / "weights")
    model = asdict(read_hf_config(tmp_path / "weights").model)
    model |= {"init_from": "weights", "init_from_differs": []}
    return {f"model.{key}": "null" if value is None else str(value).lower() for key, value in model.items()}


def overrides_of(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def test_weights_must_be_a_hugging_face_directory(base, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    (missing,) = recipe_problems(base("model.init_from=nowhere").recipe)
    assert "is no directory; it must be a Hugging Face directory" in missing.message
    (empty,) = recipe_problems(base("model.init_from=empty").recipe)
    assert "holds no config.json" in empty.message
    (other,) = recipe_problems(base("model.init_from=other").recipe)
    assert (other.path, "model_type = None" in other.message) == ("model.init_from", True)


def test_weights_must_be_those_of_the_model(base, weights) -> None:
    assert recipe_problems(base(*overrides_of(weights)).recipe) == []
    changed = weights | {"model.rms_norm_eps": "1e-6", "model.vocab_size": "300"}
    size, eps = recipe_problems(base(*overrides_of(changed)).recipe)
    assert (size.path, eps.path) == ("model.vocab_size", "model.rms_norm_eps")
    assert "given 300; " in size.message
    assert "config.json says 256." in size.message
    assert "init_from_differs" in eps.fix
    assert "init_from_differs" not in size.fix
    meant = weights | {"model.rms_norm_eps": "1e-6", "model.init_from_differs": "[rms_norm_eps]"}
    assert recipe_problems(base(*overrides_of(meant)).recipe) == []


def test_weights_that_are_not_all_there_are_named(base, weights, tmp_path) -> None:
    index = {"weight_map": {"lm_head.weight": "model.safetensors"}}
    (tmp_path / "weights" / "model.safetensors.index.json").write_text(json.dumps(index))
    (problem,) = recipe_problems(base(*overrides_of(weights)).recipe)
    assert problem.path == "model.init_from"
    assert "tensors are missing: model.embed_tokens.weight, model.norm.weight" in problem.message
