"""Names of tensors: the hub's, one tensor an expert, against those of `DeepSeekV3`, which stacks experts.

Importable without torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from moeframe.model.config import DeepSeekV3Config

__all__ = ["Target", "hub_copies", "hub_shapes", "hub_targets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a hub tensor lies in the model.

    `name` is the parameter or buffer; `expert` the global number of the expert, None for a plain tensor; `part` which
    rows of the expert's matrix: gate rows come first, then up rows, in ``gate_up_proj``.
    """

    name: str
    expert: int | None = None
    part: Literal["all", "gate", "up"] = "all"


_ATTENTION = ("kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj")
_QUERIES = {True: ("q_a_proj", "q_a_layernorm", "q_b_proj"), False: ("q_proj",)}
_MLP = ("gate_proj", "up_proj", "down_proj")


def hub_targets(config: DeepSeekV3Config) -> dict[str, Target]:
    """Return every hub tensor of the model with its target; the map is one to one."""
    targets = {
        "model.embed_tokens.weight": Target(name="embedding.weight"),
        "model.norm.weight": Target(name="norm.weight"),
        "lm_head.weight": Target(name="head.weight"),
    }
    for layer in range(config.num_hidden_layers):
        is_moe = layer >= config.first_k_dense_replace
        targets.update(_layer(f"model.layers.{layer}", f"blocks.{layer}", config, is_moe=is_moe))
    for depth in range(config.num_nextn_predict_layers):
        hub, own = f"model.layers.{config.num_hidden_layers + depth}", f"mtp.{depth}"
        targets.update(_layer(hub, f"{own}.block", config, is_moe=True))
        targets.update({f"{hub}.{leaf}.weight": Target(name=f"{own}.{leaf}.weight") for leaf in _MTP})
        targets[f"{hub}.shared_head.norm.weight"] = Target(name=f"{own}.norm.weight")
    return targets


_MTP = ("enorm", "hnorm", "eh_proj")


def hub_copies(config: DeepSeekV3Config) -> dict[str, str]:
    """Return the hub tensors that repeat another one, with that one: embedding and head of each MTP module."""
    copies = {}
    for depth in range(config.num_nextn_predict_layers):
        hub = f"model.layers.{config.num_hidden_layers + depth}"
        copies[f"{hub}.embed_tokens.weight"] = "model.embed_tokens.weight"
        copies[f"{hub}.shared_head.head.weight"] = "lm_head.weight"
    return copies


def hub_shapes(config: DeepSeekV3Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every hub tensor of the model, copies included."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.qk_head_dim
    by_leaf = {
        "embed_tokens": (config.vocab_size, hidden),
        "lm_head": (config.vocab_size, hidden),
        "head": (config.vocab_size, hidden),
        "q_proj": (queries, hidden),
        "q_a_proj": (config.q_lora_rank or 0, hidden),
        "q_a_layernorm": (config.q_lora_rank or 0,),
        "q_b_proj": (queries, config.q_lora_rank or 0),
        "kv_a_proj_with_mqa": (config.kv_lora_rank + config.qk_rope_head_dim, hidden),
        "kv_a_layernorm": (config.kv_lora_rank,),
        "kv_b_proj": (
            config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim),
            config.kv_lora_rank,
        ),
        "o_proj": (hidden, config.num_attention_heads * config.v_head_dim),
        "gate": (config.n_routed_experts, hidden),
        "e_score_correction_bias": (config.n_routed_experts,),
        "eh_proj": (hidden, 2 * hidden),
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (*hub_targets(config), *hub_copies(config)):
        module = name.removesuffix(".weight")
        leaf = module.rpartition(".")[2]
        if leaf in _MLP:
            width = _mlp_width(module, config)
            shapes[name] = (hidden, width) if leaf == "down_proj" else (width, hidden)
        else:
            shapes[name] = by_leaf.get(leaf, (hidden,))  # what is left are norms
    return shapes


def _mlp_width(module: str, config: DeepSeekV3Config) -> int:
    """Return the inner width of a gated MLP by the name of one of its linears."""
    if ".experts." in module:
        return config.moe_intermediate_size
    shared = ".shared_experts." in module
    return config.n_shared_experts * config.moe_intermediate_size if shared else config.intermediate_size


def _layer(hub: str, own: str, config: DeepSeekV3Config, *, is_moe: bool) -> Iterator[tuple[str, Target]]:
    yield f"{hub}.input_layernorm.weight", Target(name=f"{own}.attend.norm.weight")
    yield f"{hub}.post_attention_layernorm.weight", Target(name=f"{own}.attend.ffn_norm.weight")
    for leaf in (*_QUERIES[config.q_lora_rank is not None], *_ATTENTION):
        yield f"{hub}.self_attn.{leaf}.weight", Target(name=f"{own}.attend.attention.{leaf}.weight")
    if not is_moe:
        for leaf in _MLP:
            yield f"{hub}.mlp.{leaf}.weight", Target(name=f"{own}.experts.mlp.{leaf}.weight")
        return
    yield f"{hub}.mlp.gate.weight", Target(name=f"{own}.attend.router.weight")
    if config.topk_method == "noaux_tc":
        bias = "e_score_correction_bias"
        yield f"{hub}.mlp.gate.{bias}", Target(name=f"{own}.attend.router.{bias}")
    if config.n_shared_experts:
        for leaf in _MLP:
            yield f"{hub}.mlp.shared_experts.{leaf}.weight", Target(name=f"{own}.experts.shared.{leaf}.weight")
    routed = f"{own}.experts.routed"
    for expert in range(config.n_routed_experts):
        name = f"{hub}.mlp.experts.{expert}"
        yield f"{name}.gate_proj.weight", Target(name=f"{routed}.gate_up_proj", expert=expert, part="gate")
        yield f"{name}.up_proj.weight", Target(name=f"{routed}.gate_up_proj", expert=expert, part="up")
        yield f"{name}.down_proj.weight", Target(name=f"{routed}.down_proj", expert=expert)
