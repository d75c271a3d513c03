"""What the rank processes are told to run. Importable without torch, so that the process that asks needs none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeframe.config.schema import Recipe
    from moeframe.verify.records import RankNumbers
    from moeframe.verify.rehearsal import Jobs
    from moeframe.verify.weights import Basis

__all__ = ["run_basis", "run_job", "run_probes", "warm_up"]


def warm_up() -> None:
    """Import what jobs need."""
    import moeframe.verify.rehearsal  # noqa: F401  for its effect


def run_job(recipe: Recipe, plugins: Sequence[str], jobs: Jobs | None) -> RankNumbers:
    """See `moeframe.verify.rehearsal.rehearse`."""
    from moeframe.verify.rehearsal import rehearse

    return rehearse(recipe, plugins, jobs)


def run_basis(recipe: Recipe, plugins: Sequence[str]) -> Basis:
    """See `moeframe.verify.basis.gradient_basis`."""
    from moeframe.verify.basis import gradient_basis

    return gradient_basis(recipe, plugins)


def run_probes(recipe: Recipe, plugins: Sequence[str]) -> list[str]:
    """See `moeframe.verify.probes.probe_parts`."""
    from moeframe.verify.probes import probe_parts

    return probe_parts(recipe, plugins)
