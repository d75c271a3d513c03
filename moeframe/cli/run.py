"""`moeframe run`: check a recipe, then train it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeframe.config.compose import compose
from moeframe.config.load import read_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.environment import detect
from moeframe.train.start import start

__all__ = ["run"]


def run(recipe: Path, overrides: Sequence[str], plugins: Sequence[str], resume: str | None = None) -> int:
    """Check everything that can be checked, start the processes, and return the exit code.

    `resume` is a run directory or ``latest``; None starts a new run.
    """
    loaded = read_recipe(recipe, overrides)
    host = build_plugin_manager(plugins, wanted=loaded.backends)
    world = detect()
    composition = compose(loaded, Catalog(host), world_size=None if world.launcher == "none" else world.world_size)
    return start(composition, plugins, resume)
