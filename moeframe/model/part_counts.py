"""Parameters of a part of a model, by role, by formula. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counts import attention_matrices

__all__ = ["RoleCounts", "count_part"]


@dataclass(frozen=True, kw_only=True)
class RoleCounts:
    """Numbers of parameters by role; `expert` counts all experts of the layers, those of every ep rank."""

    dense: int = 0
    expert: int = 0
    router: int = 0
    embedding: int = 0

    def __add__(self, other: RoleCounts) -> RoleCounts:
        """Return the sum of each."""
        return RoleCounts(
            dense=self.dense + other.dense,
            expert=self.expert + other.expert,
            router=self.router + other.router,
            embedding=self.embedding + other.embedding,
        )

    @property
    def total(self) -> int:
        """All of them."""
        return self.dense + self.expert + self.router + self.embedding


def count_part(config: DeepSeekV3Config, layers: Iterable[int], *, has_embedding: bool, has_head: bool) -> RoleCounts:
    """Count a part: decoder layers by number; the embedding; final norm, head and MTP modules.

    The router's correction bias is a buffer and not counted.
    """
    hidden = config.hidden_size
    found = RoleCounts()
    for layer in layers:
        found += _layer(config, is_dense=layer < config.first_k_dense_replace)
    if has_embedding:
        found += RoleCounts(embedding=config.vocab_size * hidden)
    if has_head:
        found += RoleCounts(dense=hidden + config.vocab_size * hidden)
        for _ in range(config.num_nextn_predict_layers):
            # two norms and the projection, a decoder layer, the norm behind it
            found += RoleCounts(dense=2 * hidden + 2 * hidden * hidden + hidden) + _layer(config, is_dense=False)
    return found


def _layer(config: DeepSeekV3Config, *, is_dense: bool) -> RoleCounts:
    hidden = config.hidden_size
    attention = attention_matrices(config) + 2 * hidden + (config.q_lora_rank or 0) + config.kv_lora_rank
    if is_dense:
        return RoleCounts(dense=attention + 3 * hidden * config.intermediate_size)
    expert = 3 * hidden * config.moe_intermediate_size
    return RoleCounts(
        dense=attention + config.n_shared_experts * expert,
        expert=config.n_routed_experts * expert,
        router=config.n_routed_experts * hidden,
    )
