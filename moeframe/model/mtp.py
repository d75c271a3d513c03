"""A multi-token-prediction module (DeepSeek-V3 report, section 2.2). B sequences, S positions, D width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.model.attention import attention_mask
from moeframe.model.block import Block, Parts
from moeframe.model.counters import LayerCounter

__all__ = ["MTPModule", "look_ahead", "valid_ahead"]


def look_ahead(embedded_BSD: torch.Tensor, depth: int) -> torch.Tensor:
    """Return at position i the embedding of token i + depth; zeros at the last `depth` positions."""
    return F.pad(embedded_BSD[:, depth:], (0, 0, 0, depth))


def valid_ahead(
    valid_BS: torch.Tensor | None,
    depth: int,
    like_BSD: torch.Tensor,
    document_ids_BS: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return where token i and the `depth` tokens after it are input tokens of one document, (B, S) bool."""
    batch, length, _ = like_BSD.shape
    if valid_BS is None:
        inside_S = torch.arange(length, device=like_BSD.device) < length - depth
        ahead_BS = inside_S.expand(batch, length)
    else:
        ahead_BS = valid_BS
        for steps in range(1, depth + 1):
            ahead_BS = ahead_BS & F.pad(valid_BS[:, steps:], (0, steps))
    if document_ids_BS is not None:
        same_BS = document_ids_BS[:, depth:] == document_ids_BS[:, :-depth]
        ahead_BS = ahead_BS & F.pad(same_BS, (0, depth))
    return ahead_BS


class MTPModule(nn.Module):
    """One more decoder layer, which sees the token `depth` ahead and predicts the one after it.

    Embedding and head are the model's own. What comes in is the state after the final norm of the model, or after
    `norm` of the module before.

    The token ahead comes from the input. A position whose token ahead lies beyond the input, or beyond its document
    where documents are kept apart, has no target either (sequences bring one token more than the input), so it counts
    nowhere: it is routed to no expert, and causal attention keeps it from the others.
    """

    def __init__(self, parts: Parts, *, depth: int, counter: LayerCounter) -> None:
        super().__init__()
        config, compute = parts.config, parts.compute
        self.depth = depth
        self.enorm = compute.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.hnorm = compute.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.eh_proj = compute.linear(2 * config.hidden_size, config.hidden_size)
        self.block = Block(parts, layer=config.num_hidden_layers + depth - 1, counter=counter)
        self.norm = compute.rms_norm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self,
        hidden_BSD: torch.Tensor,
        embedded_BSD: torch.Tensor,
        valid_BS: torch.Tensor | None,
        forced_BSK: torch.Tensor | None,
        document_ids_BS: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the normed state (B, S, D) that the head turns into logits of token i + depth + 1.

        Args:
            hidden_BSD: normed state of the model or of the module before.
            embedded_BSD: embeddings of the input tokens, not shifted.
            valid_BS: false for padding; None: no padding.
            forced_BSK: expert ids in place of the router's choice.
            document_ids_BS: equal where tokens may see each other; None: all may.
        """
        valid_ahead_BS = valid_ahead(valid_BS, self.depth, hidden_BSD, document_ids_BS)
        # Without padding the positions to leave out end a document, and causal attention hides them already.
        mask = attention_mask(valid_BS, document_ids_BS)
        joined_BSD = self._joined(hidden_BSD, embedded_BSD)
        out: torch.Tensor = self.norm(self.block(joined_BSD, mask, valid_ahead_BS, forced_BSK))
        return out

    def enter(self, hidden_BSD: torch.Tensor, embedded_BSD: torch.Tensor) -> torch.Tensor:
        """Run what comes before the block, for a schedule that runs the block's phases itself."""
        return self._joined(hidden_BSD, embedded_BSD)

    def leave(self, out_BSD: torch.Tensor) -> torch.Tensor:
        """Run what comes after the block."""
        normed: torch.Tensor = self.norm(out_BSD)
        return normed

    def _joined(self, hidden_BSD: torch.Tensor, embedded_BSD: torch.Tensor) -> torch.Tensor:
        ahead_BSD = look_ahead(embedded_BSD, self.depth)
        joined: torch.Tensor = self.eh_proj(torch.cat([self.enorm(ahead_BSD), self.hnorm(hidden_BSD)], dim=-1))
        return joined
