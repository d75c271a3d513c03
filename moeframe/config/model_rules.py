"""What must be true of the model's dimensions (DeepSeek-V3 report, section 2; Hugging Face's names)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from moeframe.config.schema import Recipe
from moeframe.errors import Problem, UserInputError
from moeframe.mesh.degrees import divisors
from moeframe.model.hf_directory import HfDirectory

__all__ = ["MODEL_RULES"]

_AT_LEAST: Final[dict[str, int]] = {
    "vocab_size": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "first_k_dense_replace": 0,
    "intermediate_size": 1,
    "moe_intermediate_size": 1,
    "n_routed_experts": 1,
    "num_experts_per_tok": 1,
    "n_shared_experts": 0,
    "num_attention_heads": 1,
    "q_lora_rank": 1,
    "kv_lora_rank": 1,
    "qk_nope_head_dim": 1,
    "qk_rope_head_dim": 2,
    "v_head_dim": 1,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 1,
    "num_nextn_predict_layers": 0,
}
_MAX_INT: Final = 2**31 - 1
_MOST: Final[dict[str, int]] = {"num_hidden_layers": 10_000, "num_nextn_predict_layers": 10_000}
"""Of what is gone through one by one, before a job starts too."""
_POSITIVE: Final = ("routed_scaling_factor", "rope_theta", "rms_norm_eps", "initializer_range", "capacity_factor")
_NOT_NEGATIVE: Final = ("mtp_loss_weight", "aux_loss_alpha", "bias_update_speed")


def _integers(name: str, lowest: int) -> Callable[[Recipe], Iterator[Problem]]:
    def rule(recipe: Recipe) -> Iterator[Problem]:
        value, most = getattr(recipe.model, name), _MOST.get(name, _MAX_INT)
        if value is not None and value < lowest:
            yield Problem(path=f"model.{name}", message=f"given {value}; must be {lowest} or more.", fix="Raise it.")
        if value is not None and value > most:
            yield Problem(path=f"model.{name}", message=f"given {value}; must be {most} or less.", fix="Lower it.")

    return rule


def _numbers(name: str, *, positive: bool) -> Callable[[Recipe], Iterator[Problem]]:
    def rule(recipe: Recipe) -> Iterator[Problem]:
        value = getattr(recipe.model, name)
        if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
            bound = "a finite number above 0" if positive else "a finite number, 0 or more"
            yield Problem(path=f"model.{name}", message=f"given {value}; must be {bound}.", fix="Correct it.")

    return rule


def _dense_layers(recipe: Recipe) -> Iterator[Problem]:
    model = recipe.model
    if model.first_k_dense_replace > model.num_hidden_layers >= 1:
        yield Problem(
            path="model.first_k_dense_replace",
            message=f"given {model.first_k_dense_replace}; must not exceed num_hidden_layers = "
            f"{model.num_hidden_layers}.",
            fix=f"Use {model.num_hidden_layers} or less.",
        )


def _rope_is_pairs(recipe: Recipe) -> Iterator[Problem]:
    size = recipe.model.qk_rope_head_dim
    if size > 1 and size % 2:
        message = f"given {size}; must be even: rotary embedding turns pairs."
        yield Problem(path="model.qk_rope_head_dim", message=message, fix=f"Use {size - 1} or {size + 1}.")


def _groups(recipe: Recipe) -> Iterator[Problem]:
    model = recipe.model
    smallest = min(model.n_group, model.topk_group, model.n_routed_experts, model.num_experts_per_tok)
    if smallest < 1 or model.n_routed_experts > _MAX_INT:
        return
    if model.n_routed_experts % model.n_group:
        yield Problem(
            path="model.n_group",
            message=f"given {model.n_group}; must divide n_routed_experts = {model.n_routed_experts}.",
            fix=f"Legal: {', '.join(map(str, divisors(model.n_routed_experts)))}.",
        )
        return
    per_group = model.n_routed_experts // model.n_group
    if model.topk_group > model.n_group:
        yield Problem(
            path="model.topk_group",
            message=f"given {model.topk_group}; must not exceed n_group = {model.n_group}.",
            fix=f"Use {model.n_group} or less.",
        )
    elif model.num_experts_per_tok > model.topk_group * per_group:
        yield Problem(
            path="model.num_experts_per_tok",
            message=f"given {model.num_experts_per_tok}; must not exceed the {model.topk_group * per_group} experts "
            f"that a token may reach (topk_group {model.topk_group} x {per_group} experts of a group).",
            fix=f"Use {model.topk_group * per_group} or less, or raise topk_group.",
        )
    if model.topk_method == "noaux_tc" and model.n_group > 1 and per_group < 2:
        yield Problem(
            path="model.n_group",
            message=f"given {model.n_group}, which leaves {per_group} expert in a group; topk_method noaux_tc scores a "
            "group by its two best experts.",
            fix=f"Use {model.n_routed_experts // 2} or less, or topk_method group_limited_greedy.",
        )


def _greedy_has_no_groups(recipe: Recipe) -> Iterator[Problem]:
    model = recipe.model
    if model.topk_method == "greedy" and model.n_group > 1:
        yield Problem(
            path="model.n_group",
            message=f"given {model.n_group}, but topk_method greedy knows no groups.",
            fix="Use n_group 1 and topk_group 1, or topk_method group_limited_greedy.",
        )


def _yarn(recipe: Recipe) -> Iterator[Problem]:
    scaling = recipe.model.rope_scaling
    if scaling is None:
        return
    for name, value, lowest in (
        ("factor", scaling.factor, 1.0),
        ("original_max_position_embeddings", scaling.original_max_position_embeddings, 1),
    ):
        if not (math.isfinite(value) and value >= lowest):
            message = f"given {value}; must be {lowest:g} or more."
            yield Problem(path=f"model.rope_scaling.{name}", message=message, fix="Raise it.")
    if not (0 < scaling.beta_slow < scaling.beta_fast < math.inf):
        yield Problem(
            path="model.rope_scaling.beta_fast",
            message=f"given {scaling.beta_fast}; must be above beta_slow = {scaling.beta_slow}, and both above 0.",
            fix="DeepSeek uses 32 and 1.",
        )
    for name in ("mscale", "mscale_all_dim"):
        value = getattr(scaling, name)
        if not (math.isfinite(value) and value >= 0):
            message = f"given {value}; must be a finite number, 0 or more."
            yield Problem(path=f"model.rope_scaling.{name}", message=message, fix="DeepSeek-V3 uses 1.")


def _init_from(recipe: Recipe) -> Iterator[Problem]:
    given = recipe.model.init_from
    if given is None:
        return
    if not (Path(given) / "config.json").is_file():
        what = "holds no config.json" if Path(given).is_dir() else "is no directory"
        yield Problem(
            path="model.init_from",
            message=f"{given} {what}; it must be a Hugging Face directory with config.json and safetensors.",
            fix="Correct the path; it is relative to the recipe file that gives it. To go on with --resume, "
            "model.init_from=null will do.",
        )
        return
    try:
        directory = HfDirectory(given)
    except UserInputError as error:
        yield Problem(path="model.init_from", message=str(error), fix="")
        return
    for misfit in directory.misfits(recipe.model):
        yield Problem(path=f"model.{misfit.key or 'init_from'}", message=misfit.message, fix=misfit.fix)


MODEL_RULES: Final[tuple[Callable[[Recipe], Iterable[Problem]], ...]] = (
    *(_integers(name, lowest) for name, lowest in _AT_LEAST.items()),
    *(_numbers(name, positive=True) for name in _POSITIVE),
    *(_numbers(name, positive=False) for name in _NOT_NEGATIVE),
    _dense_layers,
    _rope_is_pairs,
    _groups,
    _greedy_has_no_groups,
    _yarn,
    _init_from,
)
