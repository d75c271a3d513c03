"""How many parameters a model has, by arithmetic (no tensor is made)."""

from __future__ import annotations

from dataclasses import dataclass

from moeframe.model.config import DeepSeekV3Config

__all__ = ["ParameterCounts", "parameter_counts"]


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """`total` and `activated` (used by one token) leave the MTP modules out, which `mtp` counts without shared parts.

    Embedding, head, norms and the correction bias count, as in a checkpoint.
    """

    total: int
    activated: int
    mtp: int


def parameter_counts(model: DeepSeekV3Config) -> ParameterCounts:
    """Return the parameter counts of a model."""
    hidden, heads = model.hidden_size, model.num_attention_heads
    if model.q_lora_rank is None:
        query = hidden * heads * model.qk_head_dim
    else:
        query = model.q_lora_rank * (hidden + heads * model.qk_head_dim + 1)  # + 1: the norm
    latent = hidden * (model.kv_lora_rank + model.qk_rope_head_dim) + model.kv_lora_rank
    key_value = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
    attention = query + latent + key_value + heads * model.v_head_dim * hidden + 2 * hidden  # + 2: the block's norms
    expert = 3 * hidden * model.moe_intermediate_size
    dense_layer = attention + 3 * hidden * model.intermediate_size
    bias = model.n_routed_experts if model.topk_method == "noaux_tc" else 0
    router = model.n_routed_experts * hidden + bias
    moe_layer = attention + router + (model.n_routed_experts + model.n_shared_experts) * expert
    active_layer = attention + router + (model.num_experts_per_tok + model.n_shared_experts) * expert
    outside = 2 * model.vocab_size * hidden + hidden
    dense = min(model.first_k_dense_replace, model.num_hidden_layers)
    sparse = model.num_hidden_layers - dense
    return ParameterCounts(
        total=outside + dense * dense_layer + sparse * moe_layer,
        activated=outside + dense * dense_layer + sparse * active_layer,
        mtp=model.num_nextn_predict_layers * (moe_layer + 2 * hidden * hidden + 3 * hidden),
    )
