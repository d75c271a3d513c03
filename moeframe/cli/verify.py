"""`moeframe verify`: the proof of one recipe on this machine's CPU."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from moeframe.cli.progress import ProgressLine
from moeframe.config.load import read_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.verify import compose_to_prove, verify
from moeframe.verify.reference.plugin import MODULE

__all__ = ["verify_recipe"]

_NARROWEST: Final = 80
_WIDEST: Final = 120


def verify_recipe(recipe: Path, overrides: Sequence[str], plugins: Sequence[str], *, as_json: bool = False) -> int:
    """Prove a recipe, print the table, and return the exit code: 0 proved, 1 different, 3 something was not run.

    Raises:
        RecipeError: the recipe is wrong, or names a backend that cannot be proved on a CPU in float64.
        PluginError: a module of `plugins` is broken.
    """
    loaded = read_recipe(recipe, overrides)
    offered = Catalog(build_plugin_manager(plugins, wanted=loaded.backends))  # the reference is no one's to name
    composition, notes = compose_to_prove(loaded, offered)
    catalog = Catalog(build_plugin_manager([*plugins, MODULE], wanted=loaded.backends))
    line = ProgressLine(sys.stderr)

    def show(done: int, total: int, what: str) -> None:
        line.show(f"verify {done}/{total} after {{time}}: {what}")

    try:
        verdict = verify(composition, catalog, plugins=plugins, notes=notes, progress=show)
    finally:
        line.clear()
    if as_json:
        typer.echo(json.dumps(verdict.data(), indent=2))
    else:
        width = min(max(shutil.get_terminal_size().columns, _NARROWEST), _WIDEST)
        typer.echo("\n".join(verdict.lines(width)))
    return verdict.exit_code
