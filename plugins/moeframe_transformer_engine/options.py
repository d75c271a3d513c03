"""Options of the compute backend `te`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TransformerEngineOptions"]


@dataclass(frozen=True, kw_only=True)
class TransformerEngineOptions:
    """What linear layers and routed experts multiply in."""

    precision: Literal["bfloat16", "fp8_blockwise"] = "bfloat16"
    """bfloat16, or FP8 as in DeepSeek-V3 (report, section 3.3): E4M3 for all three products of every linear layer and
    expert, a scale for each 1x128 tile of activations and gradients and each 128x128 block of weights, sums in float32.
    Embedding, head, router, norms and attention's softmax keep bfloat16 and float32; weights, their gradients and the
    optimizer keep the dtypes of `train.precision` and of the sharding. Scales are powers of 2 (Transformer Engine's
    `Float8BlockScaling`). fp8_blockwise needs GPUs of compute capability 9.0 or more.
    """
