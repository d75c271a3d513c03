"""Multi-head latent attention (DeepSeek-V3 report, section 2.1.1), in the form for training.

B sequences, S positions, D width, H heads.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.rope import Rotary, attention_scale, rotate
from moeframe.protocols.compute import Compute

__all__ = ["LatentAttention", "attention_mask"]

LATENT_NORM_EPS: Final = 1e-6
"""Of the two norms on latents, in every published checkpoint, whatever `rms_norm_eps` says."""


def attention_mask(valid_BS: torch.Tensor | None, document_ids_BS: torch.Tensor | None = None) -> torch.Tensor | None:
    """Return (B, 1, S, S) bool, true where a query may look.

    That is earlier tokens of its own document that are not padding, and itself, so that no row is empty. None when
    there is neither padding nor document ids: plain causal attention.
    """
    some = valid_BS if valid_BS is not None else document_ids_BS
    if some is None:
        return None
    length = some.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool, device=some.device).tril()
    if document_ids_BS is not None:
        mask = mask & (document_ids_BS[:, None, :, None] == document_ids_BS[:, None, None, :])
    if valid_BS is not None:
        mask = (mask & valid_BS[:, None, None, :]) | torch.eye(length, dtype=torch.bool, device=some.device)
    return mask


class LatentAttention(nn.Module):
    """Attention whose keys and values come from one small latent, and queries from another (or from the input)."""

    def __init__(self, config: DeepSeekV3Config, compute: Compute, rotary: Rotary) -> None:
        super().__init__()
        self._config = config
        self._compute = compute
        self._rotary = rotary
        self._scale = attention_scale(config)
        hidden, heads = config.hidden_size, config.num_attention_heads
        if config.q_lora_rank is None:
            self.q_proj = compute.linear(hidden, heads * config.qk_head_dim)
        else:
            self.q_a_proj = compute.linear(hidden, config.q_lora_rank)
            self.q_a_layernorm = compute.rms_norm(config.q_lora_rank, LATENT_NORM_EPS)
            self.q_b_proj = compute.linear(config.q_lora_rank, heads * config.qk_head_dim)
        self.kv_a_proj_with_mqa = compute.linear(hidden, config.kv_lora_rank + config.qk_rope_head_dim)
        self.kv_a_layernorm = compute.rms_norm(config.kv_lora_rank, LATENT_NORM_EPS)
        self.kv_b_proj = compute.linear(config.kv_lora_rank, heads * (config.qk_nope_head_dim + config.v_head_dim))
        self.o_proj = compute.linear(heads * config.v_head_dim, hidden)

    def forward(self, x_BSD: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return (B, S, D). `mask` is what `attention_mask` returned."""
        config = self._config
        batch, length, _ = x_BSD.shape
        heads, nope, rope = config.num_attention_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
        cos, sin = self._rotary.tables(length, x_BSD.device, torch.promote_types(x_BSD.dtype, torch.float32))

        queries = self._queries(x_BSD).view(batch, length, heads, nope + rope).transpose(1, 2)
        q_nope, q_rope = torch.split(queries, [nope, rope], dim=-1)
        latent, k_rope = torch.split(self.kv_a_proj_with_mqa(x_BSD), [config.kv_lora_rank, rope], dim=-1)
        keys_values = self.kv_b_proj(self.kv_a_layernorm(latent))
        keys_values = keys_values.view(batch, length, heads, nope + config.v_head_dim).transpose(1, 2)
        k_nope, values = torch.split(keys_values, [nope, config.v_head_dim], dim=-1)

        # One rotary key serves all heads.
        rotated_key = [part.expand(-1, heads, -1, -1) for part in rotate(k_rope.unsqueeze(1), cos, sin)]
        out = self._compute.attention(
            torch.cat([q_nope, *rotate(q_rope, cos, sin)], dim=-1),
            torch.cat([k_nope, *rotated_key], dim=-1),
            values,
            scale=self._scale,
            mask=mask,
        )
        result: torch.Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, heads * config.v_head_dim))
        return result

    def _queries(self, x_BSD: torch.Tensor) -> torch.Tensor:
        queries: torch.Tensor
        if self._config.q_lora_rank is None:
            queries = self.q_proj(x_BSD)
        else:
            queries = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x_BSD)))
        return queries
