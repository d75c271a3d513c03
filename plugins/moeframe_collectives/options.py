"""Options of the dispatchers. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AllGatherOptions", "AllToAllOptions", "LocalOptions"]


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of `local`."""

    validate: bool = False
    """Check range and distinctness of expert ids on a GPU too, where it costs a host sync a layer."""


@dataclass(frozen=True, kw_only=True)
class AllGatherOptions:
    """Options of `allgather`."""

    validate: bool = False
    """Check range and distinctness of expert ids on a GPU too, where it costs a host sync a layer."""


@dataclass(frozen=True, kw_only=True)
class AllToAllOptions:
    """Options of `alltoall`."""

    validate: bool = False
    """Check range and distinctness of expert ids on a GPU too, where it costs a host sync a layer."""
    check_splits: bool = False
    """Compare the ranks' split lists before rows move; costs a collective and a host sync in dispatch and combine."""
