"""Options of the dispatchers. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DeepEPOptions", "HybridEPOptions"]


@dataclass(frozen=True, kw_only=True)
class DeepEPOptions:
    """Options of `deepep`."""

    api: Literal["auto", "buffer", "elastic"] = "auto"
    """The library's class: `Buffer` (1.x), `ElasticBuffer` (2.x); auto: `ElasticBuffer` where the library has it."""
    num_sms: int = 20
    """Streaming multiprocessors that move rows; an even number. More is faster and leaves less to compute."""
    validate: bool = False
    """Check range and distinctness of expert ids, which costs a host sync a layer."""

    def __post_init__(self) -> None:
        """Refuse what the kernels assert.

        Raises:
            ValueError: names the number.
        """
        if self.num_sms < 2 or self.num_sms % 2:
            raise ValueError(f"num_sms = {self.num_sms} must be an even number of 2 or more: each channel takes two")


@dataclass(frozen=True, kw_only=True)
class HybridEPOptions:
    """Options of `hybridep`."""

    fused: bool = True
    """Permute inside the communication kernels; false: in kernels of their own before and after."""
    cache_dir: str | None = None
    """Folder for compiled kernels, a new one below it for each process; null: HYBRID_EP_CACHE_DIR, else a temporary
    one."""
    validate: bool = False
    """Check range and distinctness of expert ids, which costs a host sync a layer."""
