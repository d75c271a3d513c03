"""Runs the reference and the layouts on one pool of ranks, and says whether they agree. Needs no torch itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe
from moeframe.config.schema import Recipe
from moeframe.errors import JobFailedError, Problem, RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.testing.ranks import RankPool
from moeframe.verify.compare import compare
from moeframe.verify.diagnose import diagnose
from moeframe.verify.entry import run_basis, run_job, run_probes, warm_up
from moeframe.verify.findings import Case
from moeframe.verify.layouts import MOST_PROCESSES, Layout, Layouts, plan_layouts
from moeframe.verify.provable import require_provable
from moeframe.verify.records import RankNumbers
from moeframe.verify.reference.plugin import MODULE
from moeframe.verify.shrink import reference_of, shrink
from moeframe.verify.verdict import Row, Verdict
from moeframe.verify.weights import Basis

if TYPE_CHECKING:
    from moeframe.verify.rehearsal import Jobs

__all__ = ["Progress", "plan", "verify"]

Progress = Callable[[int, int, str], None]
"""Told before each job: how many are done, of how many, and what comes next."""

_JOB_LIMIT_S: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class _Plan:
    reference: Recipe
    layouts: Layouts


def verify(
    composition: Composition,
    catalog: Catalog,
    *,
    plugins: Sequence[str] = (),
    pool: RankPool | None = None,
    jobs: Jobs | None = None,
    only: Collection[str] | None = None,
    notes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verdict:
    """Prove a recipe: every layout around its own must leave behind what the reference does.

    Args:
        composition: of the recipe as it was given.
        catalog: with the plugins of the recipe and `reference.plugin`.
        plugins: modules of plugins that nobody installed; the ranks import them too.
        pool: of four ranks, to share between calls; None: one of its own.
        jobs: makes the jobs, the reference's too; None: as `moeframe run` does.
        only: titles of the layouts to run; None: all.
        notes: what the reader should know besides.
        progress: told what runs.

    Raises:
        RecipeError: a backend cannot be proved here, on a CPU in float64.
    """
    begun = time.monotonic()
    planned = plan(composition, catalog)
    runs = [layout for layout in planned.layouts.runs if only is None or layout.title in only]
    with ExitStack() as stack:
        pool = pool or stack.enter_context(RankPool(MOST_PROCESSES))
        bench = _Bench(pool, (*plugins, MODULE), jobs, progress, total=len(runs) + 1)
        reference, rows, cases = bench.run_all(planned.reference, runs)
        findings = []
        if reference is not None:
            findings = diagnose(
                cases,
                reference,
                basis=lambda: bench.basis(planned.reference),
                probes=bench.probes,
            )
    return Verdict(
        name=composition.recipe.name,
        rows=tuple(rows),
        findings=tuple(findings),
        notes=(*notes, *planned.layouts.notes),
        seconds=time.monotonic() - begun,
        reference=reference,
        cases=tuple(cases),
    )


def plan(composition: Composition, catalog: Catalog) -> _Plan:
    """Return the jobs to run; starts nothing.

    Raises:
        RecipeError: as `verify`.
    """
    require_provable(composition, catalog)
    shrunk = shrink(composition)
    layouts = plan_layouts(composition, shrunk)
    legal: list[Layout] = []
    refused: list[Problem] = []
    notes = [*map(str, composition.substitutions), *layouts.notes]
    if composition.recipe.train.compile:
        notes.append("train.compile is left out: what it traces is the same mathematics, and tracing takes minutes.")
    for layout in layouts.runs:
        try:
            compose(LoadedRecipe.of(layout.recipe), catalog, device_kind="cpu")
        except RecipeError as error:
            refused += error.problems
            reasons = "; ".join(problem.message for problem in error.problems)
            notes.append(f"{layout.title}: left out, because the recipe's backends refuse it: {reasons}")
            continue
        legal.append(layout)
    if not legal:
        raise RecipeError(refused or [_nothing_to_run(composition)])
    reference = reference_of(shrunk, layouts.global_batch_size)
    return _Plan(reference=reference, layouts=replace(layouts, runs=tuple(legal), notes=tuple(notes)))


def _nothing_to_run(composition: Composition) -> Problem:
    return Problem(
        path="parallel",
        message=f"no layout of at most {MOST_PROCESSES} processes is legal for these backends "
        f"(dispatcher {composition.dispatcher.offer.name!r}, sharding {composition.sharding.offer.name!r}, schedule "
        f"{composition.schedule.offer.name!r}).",
        fix="verify proves on one machine's CPU; name other backends, one by one, to prove the rest.",
    )


class _Bench:
    """The pool and what all jobs have in common."""

    def __init__(
        self,
        pool: RankPool,
        plugins: Sequence[str],
        jobs: Jobs | None,
        progress: Progress | None,
        *,
        total: int,
    ) -> None:
        self._pool, self._plugins, self._jobs = pool, tuple(plugins), jobs
        self._progress, self._total, self._done = progress, total, 0

    def run_all(self, reference: Recipe, layouts: Sequence[Layout]) -> tuple[RankNumbers | None, list[Row], list[Case]]:
        """Run the reference, then every layout; a job that fails does not stop the others."""
        largest = max(layout.degrees.world for layout in layouts)
        self._say(f"starting {largest} process{'es' if largest > 1 else ''}")
        self._pool.run(warm_up, world_size=largest, timeout=_JOB_LIMIT_S)
        self._say("reference")
        try:
            (wanted,) = self._run(reference, 1)
        except JobFailedError as error:
            return None, [Row.failed("reference", 1, str(error))], []
        rows = [Row.reference(len(wanted.formulas))]
        cases: list[Case] = []
        for layout in layouts:
            self._done += 1
            self._say(layout.title)
            try:
                ranks = self._run(layout.recipe, layout.degrees.world)
            except JobFailedError as error:
                rows.append(Row.failed(layout.title, layout.degrees.world, str(error), own=layout.own))
                continue
            cases.append(Case(layout=layout, ranks=tuple(ranks), compared=compare(ranks, wanted)))
            rows.append(Row.of(cases[-1]))
        self._done = self._total
        self._say("looking for causes" if any(case.compared.differences for case in cases) else "done")
        return wanted, rows, cases

    def basis(self, reference: Recipe) -> Basis:
        """Take the reference's gradients apart."""
        recipe = replace(reference, train=replace(reference.train, micro_batch_size=1))
        return self._pool.run(run_basis, recipe, self._plugins, world_size=1, timeout=_JOB_LIMIT_S)[0]

    def probes(self, case: Case) -> list[str]:
        """Try the parts of a layout one by one; what several ranks say is said once."""
        world = case.layout.degrees.world
        try:
            said = self._pool.run(run_probes, case.layout.recipe, self._plugins, world_size=world, timeout=_JOB_LIMIT_S)
        except JobFailedError as error:
            return [f"parts tried by themselves: {str(error).splitlines()[0]}"]
        return list(dict.fromkeys(sentence for sentences in said for sentence in sentences))

    def _run(self, recipe: Recipe, world: int) -> list[RankNumbers]:
        return self._pool.run(run_job, recipe, self._plugins, self._jobs, world_size=world, timeout=_JOB_LIMIT_S)

    def _say(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, what)
