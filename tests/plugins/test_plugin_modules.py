from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from moeframe.hooks.manager import build_plugin_manager

ENTRY_POINTS = importlib.metadata.distribution("moeframe").entry_points.select(group="moeframe")


def test_every_first_party_package_is_found() -> None:
    assert sorted(entry_point.name for entry_point in ENTRY_POINTS) == [
        "collectives",
        "datasets",
        "deepep",
        "megatron_fsdp",
        "overlap",
        "pipelining",
        "schedules",
        "tensorboard",
        "torch_compute",
        "torch_sharding",
        "transformer_engine",
    ]


@pytest.mark.parametrize("module", [entry_point.module for entry_point in ENTRY_POINTS])
def test_importing_a_plugin_module_and_asking_for_its_offers_imports_nothing_heavy(module: str) -> None:
    program = (
        "import sys\n"
        "from moeframe.hooks.manager import build_plugin_manager\n"
        "host = build_plugin_manager([sys.argv[1]], entry_points=False, environment={})\n"
        "assert host.plugins[0].index.hooks\n"
        "assert sys.argv[1] in sys.modules\n"
        "assert not {'torch', 'tensorboard', 'matplotlib'} & set(sys.modules)\n"
    )
    answer = subprocess.run([sys.executable, "-c", program, module], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_what_every_first_party_plugin_offers_is_read_without_importing_it() -> None:
    host = build_plugin_manager(environment={})
    first_party = [plugin for plugin in host.plugins if plugin.origin.distribution == "moeframe"]
    assert {plugin.origin.plugin: plugin.why_imported for plugin in first_party} == {
        entry_point.name: "" for entry_point in ENTRY_POINTS
    }
    for plugin in first_party:
        host.load(plugin)
