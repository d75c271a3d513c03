"""Proves cells one by one, on one pool of ranks: as `moeframe verify` proves a recipe in its own layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from moeframe.config.compose import compose
from moeframe.config.dump import dump_recipe
from moeframe.config.load import load_recipe
from moeframe.config.schema import Recipe
from moeframe.errors import JobFailedError
from moeframe.hooks.catalog import Catalog
from moeframe.testing.ranks import RankPool
from moeframe.verify.compare import Compared, compare, in_words
from moeframe.verify.engine import plan
from moeframe.verify.entry import run_job
from moeframe.verify.layouts import Layout
from moeframe.verify.records import RankNumbers
from moeframe.verify.reference.plugin import MODULE
from moeframe.verify.shrink import STEPS

__all__ = ["Proof", "Prover"]

_LIMIT_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What came of a cell: `equal`, and in which layout how nearly, or what is wrong."""

    equal: bool
    words: str


class Prover:
    """Runs cells and keeps the references: cells of one model and batch share theirs.

    Args:
        base: the recipe that overrides of cells are laid over.
        catalog: with the plugin of the reference, `moeframe.verify.reference.plugin`.
        pool: of four ranks.
        plugins: modules of plugins that nobody installed.
    """

    def __init__(self, base: Path, catalog: Catalog, pool: RankPool, *, plugins: Sequence[str] = ()) -> None:
        self._base, self._catalog, self._pool = base, catalog, pool
        self._plugins = (*plugins, MODULE)
        self._references: dict[str, RankNumbers] = {}

    def prove(self, overrides: Sequence[str]) -> Proof:
        """Run the layout of a cell and compare every number with one process.

        Raises:
            RecipeError: the cell is refused.
        """
        composition = compose(load_recipe(self._base, overrides), self._catalog)
        planned = plan(composition, self._catalog)
        layout = next(one for one in planned.layouts.runs if one.own)
        try:
            wanted = self._reference(planned.reference)
            ranks = self._run(layout.recipe, layout.degrees.world)
        except JobFailedError as error:
            return Proof(equal=False, words=f"{layout.title}: {str(error).splitlines()[0]}")
        broken = [one.what for numbers in (wanted, *ranks) for one in numbers.formulas]
        return _proof(layout, compare(ranks, wanted), broken)

    def _reference(self, recipe: Recipe) -> RankNumbers:
        key = dump_recipe(recipe)
        if key not in self._references:
            (self._references[key],) = self._run(recipe, 1)
        return self._references[key]

    def _run(self, recipe: Recipe, world: int) -> list[RankNumbers]:
        return self._pool.run(run_job, recipe, self._plugins, None, world_size=world, timeout=_LIMIT_S)


def _proof(layout: Layout, compared: Compared, broken: list[str]) -> Proof:
    worst = in_words(max(compared.worst.values()))
    if compared.differences or broken:
        names = list(dict.fromkeys([*broken, *(f"{one.quantity} of {one.name}" for one in compared.differences)]))
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        return Proof(equal=False, words=f"{layout.title}: {', '.join(names[:3])}{more} differ, at most by {worst}")
    return Proof(
        equal=True,
        words=f"{layout.title}: {STEPS} optimizer steps in float64 are those of one process, "
        f"to {worst} of the largest value of each tensor.",
    )
