"""Rotary position embedding with YaRN. S positions, R the rotary head size."""

from __future__ import annotations

import math

import torch

from moeframe.model.config import DeepSeekV3Config, RopeScaling

__all__ = ["Rotary", "attention_scale", "correction_range", "inverse_frequencies", "mscale", "rotate"]


def mscale(factor: float, weight: float) -> float:
    """Return YaRN's magnitude: ``0.1 * weight * ln(factor) + 1``; 1 when the context is not stretched."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def correction_range(size: int, theta: float, scaling: RopeScaling) -> tuple[float, float]:
    """Return the pair indices between which YaRN blends, before rounding: where beta_fast and beta_slow turns fit."""

    def pair(rotations: float) -> float:
        length = scaling.original_max_position_embeddings
        return size * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    return pair(scaling.beta_fast), pair(scaling.beta_slow)


def inverse_frequencies(config: DeepSeekV3Config) -> torch.Tensor:
    """Return (R/2,) float32 angles a position; float32 in every run, as all published checkpoints were trained."""
    size = config.qk_rope_head_dim
    frequencies = 1.0 / (config.rope_theta ** (torch.arange(0, size, 2, dtype=torch.float32, device="cpu") / size))
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    fast, slow = correction_range(size, config.rope_theta, scaling)
    low, high = max(math.floor(fast), 0), min(math.ceil(slow), size - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(size // 2, dtype=torch.float32, device="cpu") - low) / width).clamp(0, 1)
    return frequencies / scaling.factor * ramp + frequencies * (1 - ramp)


def attention_scale(config: DeepSeekV3Config) -> float:
    """Return the factor of the attention scores; YaRN with mscale_all_dim sharpens them."""
    scale: float = config.qk_head_dim**-0.5
    scaling = config.rope_scaling
    if scaling is not None and scaling.mscale_all_dim:
        scale *= mscale(scaling.factor, scaling.mscale_all_dim) ** 2
    return scale


def rotate(x: torch.Tensor, cos_SR: torch.Tensor, sin_SR: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the interleaved pairs (2i, 2i + 1) of the last dimension.

    Args:
        x: (..., S, R).
        cos_SR: (S, R/2), at least float32, as `sin_SR`.
        sin_SR: see `cos_SR`.

    Returns:
        First and second members of all pairs, (..., S, R/2) each, in the dtype of x. Queries and keys are rearranged
        alike, so their products are those of the interleaved order.
    """
    even, odd = x[..., 0::2].to(cos_SR.dtype), x[..., 1::2].to(cos_SR.dtype)
    return (even * cos_SR - odd * sin_SR).to(x.dtype), (odd * cos_SR + even * sin_SR).to(x.dtype)


class Rotary:
    """Tables of cosines and sines, kept for each device and dtype; a plain object that all layers share."""

    def __init__(self, config: DeepSeekV3Config) -> None:
        self._config = config
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def tables(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (length, R/2) cosines and sines."""
        key = (device, dtype)
        if key not in self._tables or self._tables[key][0].shape[0] < length:
            self._tables[key] = self._computed(length, device, dtype)
        cos, sin = self._tables[key]
        return cos[:length], sin[:length]

    def _computed(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(length, dtype=dtype, device=device)
        angles = torch.outer(positions, inverse_frequencies(self._config).to(device=device, dtype=dtype))
        scaling = self._config.rope_scaling
        magnitude = 1.0
        if scaling is not None:
            magnitude = mscale(scaling.factor, scaling.mscale) / mscale(scaling.factor, scaling.mscale_all_dim)
        return angles.cos() * magnitude, angles.sin() * magnitude
