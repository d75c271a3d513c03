"""Parameters and FLOPs of a model by formula. Importable without torch.

Norms, softmax and the embedding lookup are left out of the FLOPs, as in the DeepSeek-V3 report's own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeframe.model.config import DeepSeekV3Config

__all__ = ["ParameterCounts", "attention_matrices", "count_parameters", "flops_per_token"]


@dataclass(frozen=True, kw_only=True)
class ParameterCounts:
    """Numbers of parameters, correction biases included (buffers here, but the hub's totals count them)."""

    attention: int
    """Matrices of one layer's attention."""
    expert: int
    """One routed expert."""
    total: int
    """The model without its MTP modules, embedding and head included."""
    activated: int
    """What one token uses of `total`."""
    mtp: int
    """All MTP modules, without the embedding and the head that they share with the model."""
    mtp_activated: int
    """What one token uses of `mtp`."""


def attention_matrices(config: DeepSeekV3Config) -> int:
    """Count the parameters of the matrices of one layer's attention."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    if config.q_lora_rank is None:
        queries = hidden * heads * config.qk_head_dim
    else:
        queries = hidden * config.q_lora_rank + config.q_lora_rank * heads * config.qk_head_dim
    down = hidden * (config.kv_lora_rank + config.qk_rope_head_dim)
    up = config.kv_lora_rank * heads * (config.qk_nope_head_dim + config.v_head_dim)
    return queries + down + up + heads * config.v_head_dim * hidden


def count_parameters(config: DeepSeekV3Config) -> ParameterCounts:
    """Count the parameters of a model."""
    hidden = config.hidden_size
    attention = attention_matrices(config)
    norms = 2 * hidden + (config.q_lora_rank or 0) + config.kv_lora_rank
    expert = 3 * hidden * config.moe_intermediate_size
    dense_layer = attention + norms + 3 * hidden * config.intermediate_size
    bias = config.n_routed_experts if config.topk_method == "noaux_tc" else 0
    routed_layer = attention + norms + config.n_shared_experts * expert + config.n_routed_experts * hidden + bias
    num_dense = config.first_k_dense_replace
    num_moe = config.num_hidden_layers - num_dense
    outside = 2 * config.vocab_size * hidden + hidden

    def whole(experts: int) -> int:
        return outside + num_dense * dense_layer + num_moe * (routed_layer + experts * expert)

    def mtp(experts: int) -> int:
        projection_and_norms = 2 * hidden * hidden + 3 * hidden
        return config.num_nextn_predict_layers * (routed_layer + experts * expert + projection_and_norms)

    return ParameterCounts(
        attention=attention,
        expert=expert,
        total=whole(config.n_routed_experts),
        activated=whole(config.num_experts_per_tok),
        mtp=mtp(config.n_routed_experts),
        mtp_activated=mtp(config.num_experts_per_tok),
    )


def flops_per_token(config: DeepSeekV3Config, seq_len: int) -> float:
    """Return the FLOPs of forward and backward of one token, MTP modules included.

    Six for every matrix parameter that a token uses; causal attention counts half of the square, over `seq_len` tokens.
    Recomputation is not counted.
    """
    hidden = config.hidden_size
    attention = attention_matrices(config)
    head = config.vocab_size * hidden
    active_experts = config.num_experts_per_tok + config.n_shared_experts
    moe_layer = (
        attention + active_experts * 3 * hidden * config.moe_intermediate_size + config.n_routed_experts * hidden
    )
    dense_layer = attention + 3 * hidden * config.intermediate_size
    num_dense = config.first_k_dense_replace
    matrices = num_dense * dense_layer + (config.num_hidden_layers - num_dense) * moe_layer + head
    matrices += config.num_nextn_predict_layers * (moe_layer + 2 * hidden * hidden + head)
    layers = config.num_hidden_layers + config.num_nextn_predict_layers
    scores = layers * config.num_attention_heads * (config.qk_head_dim + config.v_head_dim) * seq_len
    return float(6 * matrices + 3 * scores)
