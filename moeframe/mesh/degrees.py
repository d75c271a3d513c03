"""Integer arithmetic of parallel degrees and coordinates. Importable without torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, isqrt

__all__ = ["Coordinates", "Degrees", "divisors", "legal_ep"]


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]


def legal_ep(data_ranks_per_replica: int, num_experts: int) -> list[int]:
    """Return the ep degrees that divide both the data ranks of one replica and the number of experts."""
    return divisors(gcd(data_ranks_per_replica, num_experts))


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """A rank's place on every axis."""

    pp: int
    dp_replicate: int
    dp_shard: int
    ep: int
    edp: int
    edp_shard: int

    def __getitem__(self, axis: str) -> int:
        """Return the coordinate along an axis."""
        value = getattr(self, axis)
        assert isinstance(value, int)
        return value


@dataclass(frozen=True, kw_only=True)
class Degrees:
    """Sizes of the axes of a job.

    Ranks are numbered with pp outermost, then dp_replicate, then dp_shard; ep is the innermost part of dp_shard, so
    that the ranks of one expert-parallel group are neighbours. edp (replicas of one expert) = data ranks / ep, which is
    dp_replicate x edp_shard.
    """

    world: int
    pp: int
    dp_replicate: int
    ep: int

    @property
    def data_ranks(self) -> int:
        """Ranks that see different data (one pipeline stage): dp_replicate x dp_shard."""
        return self.world // self.pp

    @property
    def dp_shard(self) -> int:
        """Ranks that share one replica's dense parameters."""
        return self.data_ranks // self.dp_replicate

    @property
    def edp(self) -> int:
        """Replicas of one expert."""
        return self.data_ranks // self.ep

    @property
    def edp_shard(self) -> int:
        """Ranks that share one replica's copy of an expert."""
        return self.dp_shard // self.ep

    def problems(self, num_experts: int) -> list[tuple[str, str, str]]:
        """Return what does not factor, as (recipe key, what is wrong with its numbers, legal values)."""
        found: list[tuple[str, str, str]] = []
        for axis in ("pp", "dp_replicate", "ep"):
            value = getattr(self, axis)
            if value < 1:
                found.append((f"parallel.{axis}", f"{value} is not a positive number.", "Use 1 or more."))
        if found:
            return found
        if self.world % self.pp:
            legal = ", ".join(map(str, divisors(self.world)))
            found.append(("parallel.pp", f"{self.pp} does not divide the world size {self.world}.", f"Legal: {legal}."))
            return found
        if self.data_ranks % self.dp_replicate:
            legal = ", ".join(map(str, divisors(self.data_ranks)))
            found.append(
                (
                    "parallel.dp_replicate",
                    f"{self.dp_replicate} does not divide the {self.data_ranks} data ranks "
                    f"(world {self.world} / pp {self.pp}).",
                    f"Legal: {legal}.",
                )
            )
            return found
        if self.ep not in (legal_values := legal_ep(self.dp_shard, num_experts)):
            found.append(
                (
                    "parallel.ep",
                    f"{self.ep} does not divide both the {self.dp_shard} data ranks of one replica (world {self.world} "
                    f"/ pp {self.pp} / dp_replicate {self.dp_replicate}) and the {num_experts} experts.",
                    f"Legal: {', '.join(map(str, legal_values))}.",
                )
            )
        return found

    def coordinates(self, rank: int) -> Coordinates:
        """Return where `rank` stands on every axis."""
        data_rank = rank % self.data_ranks
        return Coordinates(
            pp=rank // self.data_ranks,
            dp_replicate=data_rank // self.dp_shard,
            dp_shard=data_rank % self.dp_shard,
            ep=data_rank % self.ep,
            edp=data_rank // self.ep,
            edp_shard=data_rank % self.dp_shard // self.ep,
        )
