"""One test for each hook, called as core calls it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from moeframe.errors import JobFailedError, PluginError, Problem
from moeframe.hooks import (
    ComputeOffer,
    DatasetOffer,
    DispatcherOffer,
    ScheduleOffer,
    ShardingOffer,
    hookimpl,
    hookspecs,
)
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.loads import LayerLoad
from moeframe.protocols.stall import Stall
from moeframe.trace import Place

HOOKS = [name for name in vars(hookspecs) if name.startswith("moeframe_")]
COMMON: dict[str, Any] = {"name": "mine", "summary": "Mine.", "build": print, "traits": print}


class Everything:
    """Offers one backend of each kind and notes what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    @hookimpl
    def moeframe_offer_dispatchers(self):
        return [DispatcherOffer(**COMMON)]

    @hookimpl
    def moeframe_offer_shardings(self):
        return [ShardingOffer(**COMMON)]

    @hookimpl
    def moeframe_offer_schedules(self):
        return [ScheduleOffer(**COMMON, legal_micro_batches=print)]

    @hookimpl
    def moeframe_offer_computes(self):
        return [ComputeOffer(**COMMON)]

    @hookimpl
    def moeframe_offer_datasets(self):
        return [DatasetOffer(**COMMON)]

    @hookimpl
    def moeframe_check_recipe(self, recipe):
        return [Problem(path="train.steps", message=f"{recipe} has too few.", fix="Set 3.")]

    @hookimpl
    def moeframe_on_run_start(self, recipe, run_dir, rank, world_size):
        self.heard.append(("run_start", {"recipe": recipe, "run_dir": run_dir, "rank": rank, "world_size": world_size}))

    @hookimpl
    def moeframe_on_step_end(self, step, metrics, loads):
        self.heard.append(("step_end", {"step": step, "metrics": metrics, "loads": loads}))

    @hookimpl
    def moeframe_on_failure(self, error, place, rank):
        self.heard.append(("failure", {"error": error, "place": place, "rank": rank}))

    @hookimpl
    def moeframe_on_stall(self, run_dir, stall):
        self.heard.append(("stall", {"run_dir": run_dir, "stall": stall}))

    @hookimpl
    def moeframe_on_run_end(self, run_dir, rank, summary):
        self.heard.append(("run_end", {"run_dir": run_dir, "rank": rank, "summary": summary}))


def test_every_hook_has_a_test_of_its_name() -> None:
    for hook in HOOKS:
        assert f"test_hook_{hook.removeprefix('moeframe_')}" in globals()


def test_every_hook_is_implemented_here() -> None:
    host = build_plugin_manager([Everything()], entry_points=False)
    assert host.plugins[0].index is not None
    assert host.plugins[0].index.hooks == set(HOOKS)


def _offered(kind: str) -> object:
    catalog = Catalog(build_plugin_manager([Everything()], entry_points=False))
    assert catalog.names(kind) == ["mine"]
    assert [record.origin.plugin for record in catalog.offers(kind)] == ["Everything"]
    return catalog.resolve(kind, "mine")


def test_hook_offer_dispatchers() -> None:
    assert _offered("dispatcher") == DispatcherOffer(**COMMON)


def test_hook_offer_shardings() -> None:
    assert _offered("sharding") == ShardingOffer(**COMMON)


def test_hook_offer_schedules() -> None:
    assert _offered("schedule") == ScheduleOffer(**COMMON, legal_micro_batches=print)


def test_hook_offer_computes() -> None:
    assert _offered("compute") == ComputeOffer(**COMMON)


def test_hook_offer_datasets() -> None:
    assert _offered("data") == DatasetOffer(**COMMON)


def _tell(plugin: object, hook: str, **arguments: Any) -> None:
    build_plugin_manager([plugin], entry_points=False).call_each(f"moeframe_on_{hook}", **arguments)


def test_hook_check_recipe() -> None:
    host = build_plugin_manager([Everything()], entry_points=False)
    (result,) = host.call_each("moeframe_check_recipe", recipe="tiny")
    assert result.plugin == "Everything"
    assert [str(problem) for problem in result.value] == ["train.steps: tiny has too few. Set 3."]


@pytest.mark.parametrize("value", [None, "train.steps", 3])
def test_hook_check_recipe_returns_a_sequence_of_problems(value: object) -> None:
    class Checks:
        @hookimpl
        def moeframe_check_recipe(self):
            return value

    host = build_plugin_manager([Checks()], entry_points=False)
    with pytest.raises(PluginError, match=f"plugin 'Checks' .*it returned {value!r}, not a list or tuple"):
        host.call_each("moeframe_check_recipe", recipe=None)


def test_hook_on_run_start() -> None:
    plugin = Everything()
    arguments = {"recipe": "tiny", "run_dir": Path("runs/x"), "rank": 1, "world_size": 2}
    _tell(plugin, "run_start", **arguments)
    assert plugin.heard == [("run_start", arguments)]


def test_hook_on_step_end() -> None:
    plugin = Everything()
    loads = (LayerLoad(layer=1, mtp=False, tokens_per_expert=(3, 1)),)
    arguments = {"step": 1, "metrics": {"loss": 5.5, "mfu": None}, "loads": loads}
    _tell(plugin, "step_end", **arguments)
    assert plugin.heard == [("step_end", arguments)]


def test_hook_on_failure() -> None:
    plugin = Everything()
    arguments = {"error": ValueError("bad batch"), "place": Place(step=3), "rank": 1}
    _tell(plugin, "failure", **arguments)
    assert plugin.heard == [("failure", arguments)]


def test_hook_on_failure_logs_what_it_raises_so_that_the_first_cause_stands(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        @hookimpl
        def moeframe_on_failure(self, rank):
            raise OSError(f"no mail from rank {rank}")

    later = Everything()
    host = build_plugin_manager([Fails(), later], entry_points=False)
    with caplog.at_level(logging.ERROR):
        host.call_each("moeframe_on_failure", error=ValueError("bad batch"), place=None, rank=1)
    assert "plugin 'Fails' (object) failed in moeframe_on_failure: OSError: no mail from rank 1" in caplog.text
    assert [event for event, _ in later.heard] == ["failure"]


STALL = Stall(
    kind="rank_died",
    ranks=(1,),
    step=3,
    micro_batch=0,
    layer=2,
    phase="dispatch",
    direction="forward",
    since="2026-11-30T00:00:00+00:00",
    cause="rank 1 was killed",
    advice="Look.",
    table=(),
)


def test_hook_on_stall() -> None:
    plugin = Everything()
    _tell(plugin, "stall", run_dir=Path("runs/x"), stall=STALL)
    assert plugin.heard == [("stall", {"run_dir": Path("runs/x"), "stall": STALL})]


def test_hook_on_stall_logs_what_it_raises_since_the_job_ends_anyway(caplog: pytest.LogCaptureFixture) -> None:
    class Fails:
        @hookimpl
        def moeframe_on_stall(self, stall):
            raise OSError(f"no mail of {stall.kind}")

    with caplog.at_level(logging.ERROR):
        _tell(Fails(), "stall", run_dir=None, stall=STALL)
    assert "OSError: no mail of rank_died" in caplog.text


def test_hook_on_run_end() -> None:
    plugin = Everything()
    arguments = {"run_dir": Path("runs/x"), "rank": 0, "summary": {"loss": 2.0}}
    _tell(plugin, "run_end", **arguments)
    assert plugin.heard == [("run_end", arguments)]


def test_hook_on_run_end_that_raises_ends_the_job_with_exit_code_1() -> None:
    class Fails:
        @hookimpl
        def moeframe_on_run_end(self):
            raise OSError("no disk")

    with pytest.raises(JobFailedError, match="OSError: no disk") as caught:
        _tell(Fails(), "run_end", run_dir=None, rank=0, summary={})
    assert caught.value.exit_code == 1


def test_kinds_cover_every_offer_hook() -> None:
    assert {kind.hook for kind in KINDS.values()} == {hook for hook in HOOKS if hook.startswith("moeframe_offer_")}
