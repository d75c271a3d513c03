"""Initial weights as a function of (seed, parameter name, element index) alone.

Any rank can fill any part of the model on its own, in any layout, and gets what one process would get.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

import torch

__all__ = ["SeededWeights", "normal_"]

_CHUNK: Final = 1 << 20
_MASK64: Final = (1 << 64) - 1
_STREAM: Final = 0x9E3779B97F4A7C15
"""Step between the states of SplitMix64 (Steele, Lea, Flood 2014), whose mixer this is."""


def _signed(value: int) -> int:
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """Shift right without copying the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def _mixed(state: torch.Tensor) -> torch.Tensor:
    bits = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _uniform(key: int, counters: torch.Tensor) -> torch.Tensor:
    """Return float64 in (0, 1), 53 random bits each."""
    bits = _mixed(counters * _signed(_STREAM) + _signed(key))
    return (_shifted(bits, 11).to(torch.float64) + 0.5) * 2.0**-53


def _key(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest(), "little")


def normal_(tensor: torch.Tensor, *, seed: int, name: str, std: float) -> None:
    """Fill a tensor with N(0, std^2); element i depends on (seed, name, i) only.

    Pairs by Box-Muller in float64, rounded to float32 before anything else, so that last-bit differences between the
    mathematical functions of two devices, or of two chunk sizes, do not show.
    """
    key = _key(seed, name)
    flat = tensor.view(-1) if tensor.is_contiguous() else torch.empty_like(tensor).view(-1)
    for start in range(0, flat.numel(), _CHUNK):
        length = min(_CHUNK, flat.numel() - start)
        # Elements 2j and 2j + 1 are the cosine and the sine of pair j; _CHUNK is even.
        pairs = torch.arange(start // 2, (start + length + 1) // 2, dtype=torch.int64, device=tensor.device)
        radius = torch.sqrt(-2.0 * torch.log(_uniform(key, 2 * pairs + 1)))
        angle = 2.0 * math.pi * _uniform(key, 2 * pairs + 2)
        values = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=-1).flatten()[:length]
        flat[start : start + length] = values.to(torch.float32).to(tensor.dtype) * std
    if not tensor.is_contiguous():
        tensor.copy_(flat.view_as(tensor))


class SeededWeights:
    """Random initial weights: matrices N(0, std^2), norms 1, correction biases 0."""

    def __init__(self, seed: int, std: float) -> None:
        self._seed = seed
        self._std = std

    @torch.no_grad()
    def fill_(self, name: str, tensor: torch.Tensor, *, first_expert: int | None) -> None:
        """Fill the tensor of this name; see `moeframe.model.plan.Weights`."""
        if first_expert is not None:
            self._fill_experts_(name, tensor, first_expert)
        elif name.endswith("e_score_correction_bias"):
            tensor.zero_()
        elif tensor.dim() == 1:
            tensor.fill_(1)
        else:
            normal_(tensor, seed=self._seed, name=name, std=self._std)

    def _fill_experts_(self, name: str, tensor: torch.Tensor, first_expert: int) -> None:
        """Fill each expert by its global number; gate and up are parameters of their own."""
        module, _, leaf = name.rpartition(".")
        for local, expert_tensor in enumerate(tensor):
            prefix = f"{module}.{first_expert + local}"
            pieces = {leaf: expert_tensor}
            if leaf == "gate_up_proj":
                pieces = dict(zip(("gate_proj", "up_proj"), expert_tensor.chunk(2), strict=True))
            for piece_name, piece in pieces.items():
                normal_(piece, seed=self._seed, name=f"{prefix}.{piece_name}", std=self._std)
