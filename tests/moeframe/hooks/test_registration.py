from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pluggy
import pytest

from moeframe.errors import PluginError, PluginLoadError
from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, NoOptions, ScheduleOffer, ShardingOffer, hookimpl
from moeframe.hooks.manager import PluginHost, build_plugin_manager
from moeframe.hooks.registration import nearest, read_offers, require_api_version

OFFER = DispatcherOffer(name="ring", summary="One line.", build=print, traits=print)


def _refusal(plugin: object) -> str:
    with pytest.raises(PluginLoadError) as caught:
        build_plugin_manager([plugin], entry_points=False)
    assert caught.value.plugin == getattr(plugin, "__name__", type(plugin).__name__)
    return str(caught.value)


def test_c94_a_misspelt_hook_is_an_error_at_registration_with_the_nearest_hook() -> None:
    class Misspelt:
        @hookimpl
        def get_dispatcher(self):
            return []

    message = _refusal(Misspelt())
    assert "'get_dispatcher' is no hook" in message
    assert "Did you mean 'moeframe_offer_dispatchers'?" in message


def test_c94_a_misspelt_hook_beside_a_good_one_is_an_error_too_and_stops_no_other_plugin() -> None:
    class HalfGood:
        @hookimpl
        def moeframe_offer_dispatchers(self):
            return [OFFER]

        @hookimpl
        def moeframe_on_step_ended(self, step):
            pass

    class Good:
        @hookimpl
        def moeframe_on_step_end(self, step):
            return None

    host = build_plugin_manager([HalfGood(), Good()], entry_points=False, listing=True)
    assert [failure.origin.plugin for failure in host.failures] == ["HalfGood"]
    assert "Did you mean 'moeframe_on_step_end'?" in host.failures[0].cause
    results = host.call_each("moeframe_on_step_end", step=1, metrics={}, loads=())
    assert [result.plugin for result in results] == ["Good"]


def test_c94_a_hook_of_a_later_version_may_be_marked_optional() -> None:
    class Newer:
        @hookimpl(optionalhook=True)
        def moeframe_on_weather(self, sky):
            pass

        @hookimpl
        def moeframe_on_step_end(self, step):
            return step

    host = build_plugin_manager([Newer()], entry_points=False)
    assert [result.value for result in host.call_each("moeframe_on_step_end", step=3, metrics={}, loads=())] == [3]


def test_c95_a_plugin_with_another_projects_marker_registers_no_hook() -> None:
    other = pluggy.HookimplMarker("otherproject")

    class Foreign:
        @other
        def some_hook(self):
            return []

    message = _refusal(Foreign())
    assert "plugin 'Foreign' (object)" in message
    assert "it registers no hook" in message
    assert "otherproject" in message


def test_c95_a_plugin_without_any_marker_registers_no_hook() -> None:
    assert "it registers no hook" in _refusal(SimpleNamespace())


def test_c95_a_hook_without_the_marker_is_an_error_and_not_ignored() -> None:
    class Unmarked:
        def moeframe_offer_dispatchers(self):
            return []

    assert "moeframe_offer_dispatchers is not marked. Write @hookimpl" in _refusal(Unmarked())


def test_c96_an_unknown_argument_is_an_error_with_the_nearest_argument() -> None:
    class Typo:
        @hookimpl
        def moeframe_on_step_end(self, metric):
            pass

    message = _refusal(Typo())
    assert "unknown argument 'metric'" in message
    assert "Did you mean 'metrics'?" in message
    assert "takes step, metrics" in message


def test_c96_an_argument_of_a_hook_that_takes_none_is_an_error() -> None:
    class Eager:
        @hookimpl
        def moeframe_offer_dispatchers(self, recipe):
            return []

    assert "moeframe_offer_dispatchers takes no argument" in _refusal(Eager())


def test_a_default_on_a_hooks_argument_is_refused_as_pluggy_versions_differ_in_passing_it() -> None:
    class Default:
        @hookimpl
        def moeframe_on_step_end(self, step, metrics=None):
            pass

    assert "'metrics' has a default" in _refusal(Default())


def test_collecting_arguments_is_refused_as_they_are_passed_by_name() -> None:
    class Collects:
        @hookimpl
        def moeframe_on_step_end(self, step, **rest):
            pass

    assert "**rest does not take an argument by name" in _refusal(Collects())


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper", "tryfirst", "trylast"])
def test_options_that_the_host_would_ignore_are_refused(option: str) -> None:
    class Ordered:
        @hookimpl(**{option: True})
        def moeframe_on_step_end(self, step):
            yield

    assert f"{option}=True" in _refusal(Ordered())


def test_a_hook_under_another_name_is_refused_as_reading_the_source_would_miss_it() -> None:
    class Renamed:
        @hookimpl(specname="moeframe_offer_dispatchers")
        def moeframe_on_step_end(self):
            return []

    assert "specname='moeframe_offer_dispatchers'" in _refusal(Renamed())


def test_a_coroutine_or_generator_is_no_hook() -> None:
    class Generates:
        @hookimpl
        def moeframe_offer_dispatchers(self):
            yield OFFER

    class Waits:
        @hookimpl
        async def moeframe_offer_dispatchers(self):
            return [OFFER]

    assert "Make it a plain function" in _refusal(Generates())
    assert "Make it a plain function" in _refusal(Waits())


def test_a_hook_may_take_any_subset_of_its_arguments_also_by_keyword_only() -> None:
    class Subsets:
        @hookimpl
        def moeframe_on_step_end(self, *, metrics):
            return metrics["loss"]

        @hookimpl
        def moeframe_on_run_end(self):
            return "end"

    host = build_plugin_manager([Subsets()], entry_points=False)
    assert host.call_each("moeframe_on_step_end", step=1, metrics={"loss": 2.0}, loads=())[0].value == 2.0
    assert host.call_each("moeframe_on_run_end", run_dir=None, rank=0, summary={})[0].value == "end"


def test_c103_a_plugin_written_before_a_hook_gained_an_argument_still_works() -> None:
    marker = pluggy.HookspecMarker("moeframe")

    class NewerSpecs:
        @marker
        def moeframe_on_step_end(self, step, metrics, weather):
            """Observe a step, in a later version."""

    class Old:
        @hookimpl
        def moeframe_on_step_end(self, step, metrics):
            return (step, metrics)

    host = PluginHost(specs=NewerSpecs)
    host.add(Old())
    assert host.failures == ()
    assert host.call_each("moeframe_on_step_end", step=1, metrics={}, weather="fair")[0].value == (1, {})


def test_c103_a_plugin_for_a_later_api_is_refused_with_both_versions() -> None:
    class Later:
        moeframe_api = ">=3"

        @hookimpl
        def moeframe_offer_dispatchers(self):
            return [OFFER]

    message = _refusal(Later())
    assert "needs version >=3 of moeframe's plugin API" in message
    assert "this moeframe has version 1" in message


@pytest.mark.parametrize(("demanded", "version", "works"), [(">=1", 1, True), (">=1,<3", 3, False), ("==2", 2, True)])
def test_c103_an_api_demand_is_a_version_specifier(demanded: str, version: int, works: bool) -> None:
    plugin = SimpleNamespace(moeframe_api=demanded)
    if works:
        require_api_version(plugin, version)
    else:
        with pytest.raises(PluginError, match=f"has version {version}"):
            require_api_version(plugin, version)


@pytest.mark.parametrize("demanded", ["three", 3, object()])
def test_c103_an_api_demand_that_is_no_specifier_is_an_error(demanded: object) -> None:
    with pytest.raises(PluginError, match="is no version specifier"):
        require_api_version(SimpleNamespace(moeframe_api=demanded))


def test_nearest_prefers_the_most_alike_and_of_equals_the_first() -> None:
    assert nearest("depep", ["alltoall", "deepep", "local"]) == "deepep"
    assert nearest("x", ["a", "b"]) == "a"
    assert nearest("x", []) is None


@dataclass(kw_only=True)
class Thawed:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Demanding:
    lists: list[int] = field(default_factory=list)
    size: int


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Ring"}, r"'Ring' does not match \[0-9\]\*\[a-z\]\[a-z0-9_\]\*"),
        ({"name": "11"}, "does not match"),
        ({"name": "ring-2"}, "does not match"),
        ({"name": "ring\n"}, "does not match"),
        ({"name": None}, "does not match"),
        ({"summary": ""}, "summary '' is not one line"),
        ({"summary": "Two\nlines"}, "is not one line"),
        ({"build": "module:function"}, "build is 'module:function', not a function"),
        ({"traits": None}, "traits is None, not a function"),
        ({"options": {}}, "options is {}, not a dataclass"),
        ({"options": NoOptions()}, "not a dataclass"),
        ({"options": Thawed}, "Thawed is not frozen"),
        ({"options": Demanding}, "the option 'size' has no default"),
        ({"needs": ()}, r"needs is \(\), not a Needs"),
        ({"needs": Needs(device_kinds=("rocm",))}, "device_kinds is"),
        ({"needs": Needs(device_kinds=())}, "device_kinds is"),
        ({"needs": Needs(modules=(ModuleNeed(name="x", install="Get x.", version="six"),))}, "no version specifier"),
    ],
)
def test_an_offer_that_breaks_a_rule_is_refused_with_the_rule(change: dict[str, object], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read_offers("moeframe_offer_dispatchers", [replace(OFFER, **change)])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "moeframe_offer_dispatchers returned None. Return a list of DispatcherOffer"),
        ("ring", "returned 'ring'"),
        (OFFER, "returned DispatcherOffer"),
        ([OFFER, "ring"], "returned 'ring' among its offers"),
        ([ShardingOffer(name="zero", summary="s", build=print, traits=print)], "Return only DispatcherOffer"),
        ([OFFER, OFFER], "offers the name 'ring' twice"),
    ],
)
def test_what_an_offer_hook_returns_is_checked(given: object, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        read_offers("moeframe_offer_dispatchers", given)


def test_good_offers_are_returned_in_order() -> None:
    other = replace(OFFER, name="other_2")
    assert read_offers("moeframe_offer_dispatchers", (OFFER, other)) == [OFFER, other]
    schedule = ScheduleOffer(name="1f1b", summary="s", build=print, traits=print, legal_micro_batches=print)
    assert read_offers("moeframe_offer_schedules", [schedule]) == [schedule]
    with pytest.raises(PluginError, match="legal_micro_batches is 4"):
        read_offers("moeframe_offer_schedules", [replace(schedule, legal_micro_batches=4)])
