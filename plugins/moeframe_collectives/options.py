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
    max_ctas: int | None = None
    """Thread blocks, one a multiprocessor, that an exchange over NCCL may take, from 1; null: as many as NCCL likes.
    Fewer leave more to what runs beside it."""

    def __post_init__(self) -> None:
        """Refuse a limit that lets nothing through.

        Raises:
            ValueError: names the number.
        """
        _require_ctas(self.max_ctas)


@dataclass(frozen=True, kw_only=True)
class AllToAllOptions:
    """Options of `alltoall`."""

    validate: bool = False
    """Check range and distinctness of expert ids on a GPU too, where it costs a host sync a layer."""
    check_splits: bool = False
    """Compare the ranks' split lists before rows move; costs a collective and a host sync in dispatch and combine."""
    max_ctas: int | None = None
    """Thread blocks, one a multiprocessor, that an exchange over NCCL may take, from 1; null: as many as NCCL likes.
    Fewer leave more to what runs beside it."""

    def __post_init__(self) -> None:
        """Refuse a limit that lets nothing through.

        Raises:
            ValueError: names the number.
        """
        _require_ctas(self.max_ctas)


def _require_ctas(number: int | None) -> None:
    if number is not None and number < 1:
        raise ValueError(f"max_ctas = {number} must be 1 or more, or null for as many as NCCL likes")
