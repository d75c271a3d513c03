"""Options of the strategies, as a recipe gives them. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Fsdp2Options", "ReplicateOptions", "Zero1Options"]


@dataclass(frozen=True, kw_only=True)
class ReplicateOptions:
    """Options of `replicate`."""

    bucket_bytes: int = 25 * 2**20
    """Gradients are summed in flat buffers of at most this many bytes; a larger gradient has a buffer of its own."""


@dataclass(frozen=True, kw_only=True)
class Zero1Options:
    """Options of `zero1`."""

    bucket_bytes: int = 25 * 2**20
    """Gradients are summed and parameters gathered in flat buffers of at most this many bytes, padding not counted; a
    larger tensor has a buffer of its own."""


@dataclass(frozen=True, kw_only=True)
class Fsdp2Options:
    """Options of `fsdp2` and `hsdp`.

    fully_shard also takes a number of ranks to reshard to. That is not offered: it makes two process groups for every
    unit, by a call that all ranks of the job must make alike, and hangs where expert-parallel ranks shard over
    different ranks.
    """

    reshard_after_forward: bool = True
    """Free gathered parameters after the forward and gather them again in the backward: less memory, more traffic."""
    reshard_experts_after_forward: bool | None = None
    """The same for routed experts; null takes over `reshard_after_forward`."""

    @property
    def reshards_experts(self) -> bool:
        """Whether gathered experts are freed after the forward."""
        if self.reshard_experts_after_forward is None:
            return self.reshard_after_forward
        return self.reshard_experts_after_forward
