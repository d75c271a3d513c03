"""Options of the compute backend `torch`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["TorchComputeOptions"]


@dataclass(frozen=True, kw_only=True)
class TorchComputeOptions:
    """How routed experts multiply."""

    grouped_mm: Literal["auto", "always", "never"] = "auto"
    """One kernel for all experts (torch.nn.functional.grouped_mm) or one product an expert.

    auto: grouped_mm wherever it takes the dtype and the sizes. always: the same, but sizes that it cannot take are an
    error. never: one product an expert, which reads the row counts on the host. float64, which grouped_mm does not
    know, always runs one product an expert. On a CPU core the two take about the same time in float32 (8 experts, 1024
    to 8192 rows of 128: 17 and 17 ms, 34 and 56 ms, forward and backward), so auto does not look at the device.
    """
