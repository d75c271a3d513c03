"""One recipe at toy size, verified with a fault or without, on the ranks that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.load import load_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.testing.ranks import RankPool
from moeframe.verify import Verdict, verify
from moeframe.verify.reference.plugin import MODULE
from moeframe.verify.rehearsal import Jobs

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes" / "deepseek_v3" / "tiny.yaml"
FAULTY = "faulty_parts"
EP2 = ("parallel.ep=2", "launch.nproc_per_node=2", "dispatcher.name=alltoall", "launch.device=cpu")

Composed = Callable[..., tuple[Composition, Catalog]]
Verified = Callable[..., Verdict]


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> Composed:
    """Compose the tiny recipe with EP 2 and overrides; the plugin with the faults is there."""
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data" / "plugins"))

    def composed(*overrides: str, recipe: Path = RECIPE, base: tuple[str, ...] = EP2) -> tuple[Composition, Catalog]:
        loaded = load_recipe(recipe, [*base, *overrides])
        catalog = Catalog(build_plugin_manager([FAULTY, MODULE], wanted=loaded.backends))
        return compose(loaded, catalog), catalog

    return composed


@pytest.fixture
def verified(composed: Composed, ranks: RankPool) -> Verified:
    """Verify it; `only` names the layouts to run."""

    def verified(*overrides: str, jobs: Jobs | None = None, only: tuple[str, ...] | None = None) -> Verdict:
        composition, catalog = composed(*overrides)
        return verify(composition, catalog, plugins=[FAULTY], pool=ranks, jobs=jobs, only=only)

    return verified
