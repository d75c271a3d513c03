"""environment.json: the versions of what a job's backends need, besides the usual ones."""

from __future__ import annotations

import importlib.metadata
import json
from dataclasses import replace
from pathlib import Path

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.hooks import ModuleNeed, Needs
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.launch.environment import World
from moeframe.train.run_directory import RunDirectory
from moeframe.train.worker import _distributions

RECIPE = Path(__file__).parents[3] / "recipes" / "quickstart.yaml"
ALONE = World(launcher="none", rank=0, world_size=1, local_rank=0, local_world_size=1, run_id="")


def test_what_a_backend_needs_or_takes_notice_of_is_recorded_where_it_is_installed(tmp_path) -> None:
    loaded = load_recipe(RECIPE)
    composition = compose(loaded, Catalog(build_plugin_manager(wanted=loaded.backends, environment={})))
    needs = Needs(
        modules=(
            ModuleNeed(name="rich.text", install=""),
            ModuleNeed(name="yaml", install="", distribution="PyYAML"),
        ),
        notices=("typer", "no-such-distribution"),
    )
    offer = replace(composition.sharding.offer, needs=needs)
    composition = replace(composition, sharding=replace(composition.sharding, offer=offer))

    found = _distributions(composition)
    assert {"rich", "PyYAML", "typer", "no-such-distribution"} <= set(found)

    directory = RunDirectory(tmp_path)
    directory.write_environment(ALONE, device="cpu", plugins=[], launch=None, distributions=found)
    versions = json.loads((tmp_path / "environment.json").read_text())["versions"]
    assert versions["PyYAML"] == importlib.metadata.version("PyYAML")
    assert {"torch", "rich", "typer"} <= versions.keys()
    assert "no-such-distribution" not in versions
