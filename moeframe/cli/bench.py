"""`moeframe bench`: times compositions on this machine's GPUs."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import typer

from moeframe.bench.baseline import plain_schedule, schedules_with_phases
from moeframe.bench.report import lines
from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe, read_recipe
from moeframe.config.misfit import setting
from moeframe.errors import JobFailedError, Problem, RecipeError, TopologyError, UserInputError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.environment import detect
from moeframe.launch.local import run_local

__all__ = ["bench_overlap"]


def bench_overlap(
    recipe: Path, overrides: Sequence[str], plugins: Sequence[str], *, out: Path, rounds: int, slow_us: float
) -> None:
    """Measure the recipe's schedule against one without overlap, print the report, write data and picture.

    Args:
        recipe: its schedule must run phases beside each other.
        overrides: win over the file's values.
        plugins: modules that are not installed.
        out: folder for ``overlap.json``, ``overlap.png`` and ``overlap.svg``.
        rounds: timed steps of each schedule.
        slow_us: makes every exchange longer by so many microseconds.

    Raises:
        UserInputError: the recipe cannot be measured, or this machine has not the GPUs for it.
        JobFailedError: a rank failed; its error is on the terminal.
    """
    if rounds < 1 or not math.isfinite(slow_us) or slow_us < 0:
        raise UserInputError(
            f"--rounds {rounds} --slow {slow_us:g}: at least 1 round, and a finite number of 0 us or more."
        )
    loaded = read_recipe(recipe, overrides)
    catalog = Catalog(build_plugin_manager(plugins, wanted=loaded.backends))
    composition = compose(loaded, catalog)
    _require_phases(composition, loaded, catalog)
    plain_schedule(catalog, composition.precision)
    _require_gpus(composition)
    file = _place(out)
    settings = {
        "recipe": str(recipe.resolve()),
        "overrides": [*overrides],
        "plugins": [*plugins],
        "rounds": rounds,
        "slow_us": slow_us,
        "out": str(file.resolve()),
    }
    with tempfile.TemporaryDirectory(prefix="moeframe-bench-") as logs:
        command = [sys.executable, "-m", "moeframe.bench.worker", json.dumps(settings)]
        outcome = run_local(command, composition.degrees.world, Path(logs))
        if any(outcome.codes):
            rank = outcome.first_failed or 0
            log = Path(logs) / f"rank-{rank}.out"
            told = log.read_text(encoding="utf-8", errors="replace")[-4000:] if log.exists() else "see above"
            raise JobFailedError(f"rank {rank} ended with exit code {outcome.codes[rank]}: {told}")
    data = json.loads(file.read_text(encoding="utf-8"))
    from moeframe.bench.picture import draw

    for ending in ("png", "svg"):
        draw(data, out / f"overlap.{ending}")
    typer.echo("\n".join([*lines(data), "", f"{out}/: overlap.json, overlap.png, overlap.svg"]))


def _place(out: Path) -> Path:
    """Return the file for the data, in a folder that can be written, which is made."""
    file = out / "overlap.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        file.touch()
        file.unlink()
    except OSError as error:
        raise UserInputError(f"--out {out}: cannot be written ({error.strerror}). Name another folder.") from error
    return file


def _require_phases(composition: Composition, loaded: LoadedRecipe, catalog: Catalog) -> None:
    if composition.schedule.traits.runs_phases:
        return
    name = composition.schedule.offer.name
    names = schedules_with_phases(catalog, composition.precision)
    fitting = setting("schedule.name", [one for one in names if _fits(one, loaded, catalog)] or names)
    problem = Problem(
        path="schedule.name",
        message=f"given {name!r}, which runs no phases beside each other: there is no overlap to measure.",
        fix=f"Use {fitting[0]}." if fitting else "No plugin offers a schedule that does.",
    )
    raise RecipeError([problem])


def _fits(name: str, loaded: LoadedRecipe, catalog: Catalog) -> bool:
    """Whether a recipe composes with another schedule and its default options."""
    with suppress(RecipeError):
        schedule = replace(loaded.recipe.schedule, name=name, options={})
        compose(replace(loaded, recipe=replace(loaded.recipe, schedule=schedule)), catalog)
        return True
    return False


def _require_gpus(composition: Composition) -> None:
    """Refuse a machine without as many GPUs as the recipe has processes: two processes of one GPU hide nothing."""
    import torch

    wanted, found = composition.degrees.world, torch.cuda.device_count()
    if detect().launcher != "none" or composition.recipe.launch.nnodes > 1:
        raise TopologyError("`moeframe bench overlap` starts its own processes, on one node. Start it by itself.")
    if found < wanted:
        raise UserInputError(
            f"`moeframe bench overlap` measures GPUs: the recipe has {wanted} process(es), and this machine {found} "
            "GPU(s). A CPU has no streams, so nothing could hide there."
        )
