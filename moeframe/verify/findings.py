"""A layout that ran, and what may be found wrong in it."""

from __future__ import annotations

from dataclasses import dataclass

from moeframe.verify.compare import Compared
from moeframe.verify.layouts import Layout
from moeframe.verify.records import RankNumbers

__all__ = ["Case", "Finding", "names_of"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something wrong in some layouts. `ratio` is None where there is no single one, `cause` where none is known.

    `details`: what else there is to say, such as the worst relative difference.
    """

    layouts: tuple[str, ...]
    what: str
    ratio: str | None
    cause: str | None
    details: str

    def __str__(self) -> str:
        """Return ``what: ratio: cause``."""
        return ": ".join(part for part in (self.what, self.ratio, self.cause) if part)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One layout that ran."""

    layout: Layout
    ranks: tuple[RankNumbers, ...]
    compared: Compared

    @property
    def title(self) -> str:
        """Name of the layout."""
        return self.layout.title

    @property
    def sizes(self) -> dict[str, float]:
        """Sizes by which a number can be wrong."""
        recipe = self.layout.recipe
        sizes: dict[str, float] = dict(self.layout.factors)
        sizes["recompute"] = 1.0 if recipe.train.recompute == "none" else 2.0
        clip = recipe.optimizer.clip_grad_norm
        sizes["unclipped"] = max(1.0, self.ranks[0].steps[0].grad_norm / clip) if clip else 1.0
        return sizes


def names_of(reference: RankNumbers, quantity: str) -> tuple[str, ...]:
    """Return the names of everything that is compared under a quantity."""
    if quantity in ("loads", "norm"):
        return {"loads": ("tokens of each expert",), "norm": ("grad_norm",)}[quantity]
    return tuple(getattr(reference.steps[0], quantity))
