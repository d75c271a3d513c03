"""Which dtype each part of a job uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

__all__ = ["DtypeName", "Precision"]

DtypeName = Literal["float32", "float64", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Precision:
    """dtype names of one job.

    `parameters` is the dtype of the optimizer's weights, `compute` that of matrix products and activations, `reduce`
    that in which gradients are summed between ranks. What the report keeps in float32 (router, norm statistics,
    gates, accumulation; DeepSeek-V3 report section 3.3) has the dtype `high`.
    """

    parameters: DtypeName
    compute: DtypeName
    reduce: DtypeName

    @classmethod
    def of(cls, name: DtypeName) -> Precision:
        """Return the policy that a recipe's `train.precision` names.

        ``bfloat16`` computes in bfloat16 over float32 weights and reduces in float32.
        """
        if name == "bfloat16":
            return cls(parameters="float32", compute="bfloat16", reduce="float32")
        return cls(parameters=name, compute=name, reduce=name)

    @property
    def high(self) -> DtypeName:
        """At least float32: float64 in a float64 run, otherwise float32."""
        return "float64" if self.parameters == "float64" else "float32"

    def dtype(self, part: Literal["parameters", "compute", "reduce", "high"]) -> torch.dtype:
        """Return the torch dtype of a part (imports torch)."""
        import torch

        found = getattr(torch, getattr(self, part))
        assert isinstance(found, torch.dtype)
        return found
