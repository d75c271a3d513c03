from __future__ import annotations

import logging
import sys

import pytest

from moeframe.errors import JobFailedError, PluginError, PluginLoadError
from moeframe.hooks import DispatcherOffer, hookimpl
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

BROKEN = """
import module_that_is_not_installed
from moeframe.hooks import DispatcherOffer, hookimpl

@hookimpl
def moeframe_offer_dispatchers():
    return [DispatcherOffer(name="deepest", summary="s", build=print, traits=print)]
"""
OBSERVER = """
from moeframe.hooks import hookimpl

@hookimpl
def moeframe_on_step_end(step):
    return ("NAME", step)

@hookimpl
def moeframe_check_recipe(recipe):
    return ["NAME"]
"""


class Observer:
    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.seen: list[int] = []

    @hookimpl
    def moeframe_on_step_end(self, step):
        self.seen.append(step)
        if self.error is not None:
            raise self.error
        return step


def _install_broken(site) -> None:
    site.distribution("moeframe-deepest", "0.7", {"deepest_plugin": "broken_plugin"}, {"broken_plugin": BROKEN})


def test_c93_a_broken_plugin_stops_no_other_and_asking_for_its_offer_raises_its_cause(site) -> None:
    _install_broken(site)
    site.dispatcher("ring")
    catalog = Catalog(build_plugin_manager())
    assert catalog.resolve("dispatcher", "ring").name == "ring"
    for _ in range(2):
        with pytest.raises(PluginLoadError) as caught:
            catalog.resolve("dispatcher", "deepest")
        assert isinstance(caught.value.__cause__, ModuleNotFoundError)
        assert caught.value.__cause__.name == "module_that_is_not_installed"
    assert (caught.value.plugin, caught.value.distribution, caught.value.version) == (
        "deepest_plugin",
        "moeframe-deepest",
        "0.7",
    )
    assert str(caught.value) == (
        "plugin 'deepest_plugin' (moeframe-deepest 0.7, entry point deepest_plugin = broken_plugin) "
        "could not be loaded: ModuleNotFoundError: No module named 'module_that_is_not_installed'. "
        "Repair or uninstall it, or block it with MOEFRAME_BLOCKED_PLUGINS=deepest_plugin."
    )


def test_c93_a_plugin_that_breaks_while_it_is_indexed_is_logged_on_one_line_with_its_cause(site, caplog) -> None:
    site.distribution("moeframe-b", "2.1", {"bad": "bad_b"}, {"bad_b": "raise OSError('no disk\\nmore')"})
    with caplog.at_level(logging.WARNING):
        host = build_plugin_manager()
    line = "plugin 'bad' (moeframe-b 2.1, entry point bad = bad_b) could not be loaded: OSError: no disk"
    assert [record.getMessage() for record in caplog.records] == [line]
    assert [str(failure) for failure in host.failures] == [line]


def test_c93_strict_raises_on_the_first_broken_plugin(site) -> None:
    site.dispatcher("ring")
    _install_broken(site)
    with pytest.raises(PluginLoadError, match=r"moeframe-deepest 0\.7.*module_that_is_not_installed") as caught:
        build_plugin_manager(strict=True)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_c93_a_module_that_ends_the_interpreter_is_a_broken_plugin(site) -> None:
    site.distribution("moeframe-x", "1.0", {"x": "leaves"}, {"leaves": "import sys\nsys.exit(3)"})
    assert [failure.cause for failure in build_plugin_manager().failures] == ["SystemExit: 3"]


def test_c93_unreadable_metadata_of_one_distribution_is_a_broken_plugin(site) -> None:
    site.metadata("moeframe-bad", "0.1", "no equals sign\n")
    site.dispatcher("ring")
    host = build_plugin_manager()
    assert [failure.origin.distribution for failure in host.failures] == ["moeframe-bad"]
    assert Catalog(host).resolve("dispatcher", "ring").name == "ring"


def test_an_entry_point_with_an_attribute_is_imported_to_be_indexed(site) -> None:
    source = """
        from moeframe.hooks import DispatcherOffer, hookimpl

        class Plugin:
            @hookimpl
            def moeframe_offer_dispatchers(self):
                return [DispatcherOffer(name="attribute", summary="s", build=print, traits=print)]

        plugin = Plugin()
    """
    site.distribution("moeframe-a", "1.0", {"a": "with_attribute:plugin"}, {"with_attribute": source})
    host = build_plugin_manager()
    (plugin,) = host.plugins
    assert (plugin.indexed_by, plugin.why_imported) == ("import", "the entry point names an attribute")
    assert Catalog(host).resolve("dispatcher", "attribute").name == "attribute"


def test_a_source_that_says_other_than_what_is_registered_is_an_error_and_hides_nothing(site) -> None:
    module = site.dispatcher("ring")
    path = site.folder / f"{module}.py"
    path.write_text(path.read_text() + "import helper_of_ring\n")
    site.module(
        "helper_of_ring",
        f"""
        import sys
        from dataclasses import replace
        module = sys.modules["{module}"]
        honest = module.moeframe_offer_dispatchers
        def moeframe_offer_dispatchers():
            return [replace(offer, name="other") for offer in honest()]
        module.moeframe_offer_dispatchers = module.hookimpl(moeframe_offer_dispatchers)
        """,
    )
    host = build_plugin_manager()
    assert host.plugins[0].indexed_by == "reading"
    with pytest.raises(PluginLoadError, match=r"\(dispatcher ring, .*\), but once imported .* \(dispatcher other, "):
        Catalog(host).resolve("dispatcher", "ring")


def test_a_module_named_by_the_user_is_imported_at_once_and_is_the_last_in_order(site) -> None:
    site.dispatcher("ring")
    site.module("mine", OBSERVER.replace("NAME", "mine"))
    host = build_plugin_manager(["mine"])
    assert [plugin.origin.plugin for plugin in host.plugins] == ["ring", "mine"]
    assert site.imported() == {"mine"}


def test_a_module_named_by_the_user_that_is_broken_is_refused_with_its_cause(site) -> None:
    site.module("mine", "import module_that_is_not_installed")
    with pytest.raises(PluginLoadError, match=r"plugin 'mine' \(module mine\).*module_that_is_not_installed") as caught:
        build_plugin_manager(["mine"])
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_a_module_named_by_the_user_that_is_not_there_is_refused_with_a_hint(site) -> None:
    with pytest.raises(PluginLoadError, match=r"No module named 'min'\. Correct the name; .* PYTHONPATH=\."):
        build_plugin_manager(["min"])


@pytest.mark.parametrize("file", ["of_here.py", "of_here/plugin.py", "of_here/plugin/__init__.py"])
def test_a_module_that_only_lies_in_the_working_directory_is_refused_with_the_way_to_it(
    site, tmp_path, monkeypatch, file
) -> None:
    folder = tmp_path / "here"
    (folder / file).parent.mkdir(parents=True)
    (folder / file).write_text(OBSERVER.replace("NAME", "of_here"))
    monkeypatch.chdir(folder)
    name = file.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    with pytest.raises(PluginLoadError) as caught:
        build_plugin_manager([name])
    where = f"{file} lies in the working directory, which is not searched: set PYTHONPATH=. for the command."
    assert str(caught.value).endswith(where)


def test_modules_are_named_in_the_environment_too(site) -> None:
    for name in ("one", "two"):
        site.module(name, OBSERVER.replace("NAME", name))
    host = build_plugin_manager(["two"], environment={"MOEFRAME_PLUGINS": "one, two,"})
    assert [plugin.origin.plugin for plugin in host.plugins] == ["one", "two"]


def test_naming_the_module_of_an_installed_plugin_adds_no_second_one(site) -> None:
    module = site.dispatcher("ring")
    host = build_plugin_manager([module])
    assert [plugin.origin.distribution for plugin in host.plugins] == ["moeframe-ring"]
    assert Catalog(host).resolve("dispatcher", "ring").name == "ring"


def test_two_entry_points_of_one_module_are_refused_with_both(site) -> None:
    module = site.dispatcher("ring")
    site.distribution("moeframe-twin", "1.0", {"twin": module}, {})
    host = build_plugin_manager(listing=True)
    host.load_all()
    assert "the same object as plugin 'ring' (moeframe-ring 1.0" in host.failures[0].cause


@pytest.mark.parametrize("missing", ["step", "metrics", "loads"])
def test_c97_a_host_call_that_misses_an_argument_is_an_error_whoever_needs_it(missing: str) -> None:
    host = build_plugin_manager([Observer()], entry_points=False)
    arguments = {"step": 1, "metrics": {}, "loads": ()}
    del arguments[missing]
    with pytest.raises(TypeError, match=rf"Missing: {missing}\. Unknown: none"):
        host.call_each("moeframe_on_step_end", **arguments)


def test_c97_a_host_call_with_an_extra_argument_is_an_error() -> None:
    host = build_plugin_manager(entry_points=False)
    with pytest.raises(TypeError, match=r"Missing: none\. Unknown: loss"):
        host.call_each("moeframe_on_step_end", step=1, metrics={}, loads=(), loss=2.0)


def test_a_host_call_of_an_unknown_hook_is_an_error_with_the_nearest_one() -> None:
    host = build_plugin_manager(entry_points=False)
    with pytest.raises(TypeError, match="Did you mean 'moeframe_on_run_end'"):
        host.call_each("moeframe_on_run_ends")


def test_c98_hooks_run_by_distribution_then_entry_point_then_as_named_by_the_user(site) -> None:
    for distribution, plugin in (("moeframe-b", "b2"), ("moeframe-a", "a1")):
        site.distribution(distribution, "1", {plugin: plugin}, {plugin: OBSERVER.replace("NAME", plugin)})
    for name in ("z_mine", "mine"):
        site.module(name, OBSERVER.replace("NAME", name))
    host = build_plugin_manager(["z_mine", "mine"])
    results = host.call_each("moeframe_on_step_end", step=7, metrics={}, loads=())
    assert [result.value for result in results] == [("a1", 7), ("b2", 7), ("z_mine", 7), ("mine", 7)]


def test_c100_an_implementation_that_raises_is_named_and_silences_no_other() -> None:
    first, second, third = Observer(ValueError("no ink")), Observer(), Observer(OSError("no paper"))
    host = build_plugin_manager([first, second, third], entry_points=False)
    with pytest.raises(JobFailedError) as caught:
        host.call_each("moeframe_on_step_end", step=1, metrics={}, loads=())
    assert str(caught.value).splitlines() == [
        "plugin 'Observer' (object) failed in moeframe_on_step_end: ValueError: no ink",
        "plugin 'Observer' (object) failed in moeframe_on_step_end: OSError: no paper",
    ]
    assert caught.value.__cause__ is first.error
    assert first.seen == second.seen == third.seen == [1]


def test_c100_a_check_that_raises_refuses_the_recipe_and_names_the_plugin() -> None:
    class Checks:
        @hookimpl
        def moeframe_check_recipe(self, recipe):
            raise KeyError("model")

    host = build_plugin_manager([Checks()], entry_points=False)
    with pytest.raises(PluginError, match=r"plugin 'Checks' \(object\) failed in moeframe_check_recipe: KeyError"):
        host.call_each("moeframe_check_recipe", recipe=None)


def test_c100_an_offer_hook_that_raises_breaks_its_plugin_only(site) -> None:
    class Offers:
        @hookimpl
        def moeframe_offer_dispatchers(self):
            raise ValueError("no offers today")

    site.dispatcher("ring")
    host = build_plugin_manager([Offers()], listing=True)
    assert [failure.cause for failure in host.failures] == ["ValueError: no offers today"]
    assert [record.name for record in Catalog(host).offers("dispatcher")] == ["ring"]


@pytest.mark.parametrize("blocked", ["ring", "moeframe-ring", "moeframe_ring_plugin"])
def test_c102_a_blocked_plugin_is_known_with_its_reason_and_never_imported(site, blocked: str) -> None:
    site.dispatcher("ring")
    host = build_plugin_manager(blocked={blocked: "it is slow"}, strict=True)
    assert host.plugins == ()
    assert [(one.origin.plugin, one.why) for one in host.blocked] == [("ring", "it is slow")]
    assert site.imported() == set()


def test_c102_a_module_named_by_the_user_may_be_blocked(site) -> None:
    site.module("mine", "raise RuntimeError")
    host = build_plugin_manager(["mine"], environment={"MOEFRAME_BLOCKED_PLUGINS": "mine"})
    assert [(str(one.origin), one.why) for one in host.blocked] == [
        ("plugin 'mine' (module mine)", "named in MOEFRAME_BLOCKED_PLUGINS")
    ]


def test_c102_blocking_a_plugin_that_is_not_there_is_said(site, caplog) -> None:
    host = build_plugin_manager(blocked=["rong"])
    assert "no plugin or distribution of that name was found" in host.blocked[0].why
    assert "'rong' is to be left out" in caplog.text


def test_c102_a_missing_offer_of_a_blocked_plugin_is_explained(site) -> None:
    site.dispatcher("ring")
    catalog = Catalog(build_plugin_manager(blocked=["ring"]))
    with pytest.raises(PluginError, match=r"plugin 'ring' .* offers it but is left out: blocked by the caller\."):
        catalog.resolve("dispatcher", "ring")


def test_c104_of_fifty_slow_plugins_a_job_imports_the_one_that_it_uses(site) -> None:
    for number in range(50):
        module = site.dispatcher(f"slow_{number}", distribution=f"moeframe-slow-{number}")
        path = site.folder / f"{module}.py"
        path.write_text(f"import time\ntime.sleep(0.1)\n{path.read_text()}")
    host = build_plugin_manager(wanted={"dispatcher": "slow_17"})
    assert site.imported() == {"moeframe_slow_17_plugin"}
    catalog = Catalog(host)
    assert catalog.resolve("dispatcher", "slow_17").name == "slow_17"
    assert len(catalog.names("dispatcher")) == 50
    assert site.imported() == {"moeframe_slow_17_plugin"}


def test_c104_plugins_that_check_or_observe_are_imported_for_a_job_and_not_before(site) -> None:
    site.dispatcher("ring")
    site.distribution("moeframe-o", "1", {"o": "observes"}, {"observes": OBSERVER})
    build_plugin_manager()
    assert site.imported() == set()
    build_plugin_manager(wanted={})
    assert site.imported() == {"observes"}


def test_the_first_observing_call_imports_every_observer_so_that_a_failure_imports_none(site) -> None:
    last = "from moeframe.hooks import hookimpl\n\n@hookimpl\ndef moeframe_on_failure(error):\n    return None\n"
    site.distribution("moeframe-o", "1", {"o": "at_failure"}, {"at_failure": last})
    host = build_plugin_manager()
    host.call_each("moeframe_on_run_start", recipe=None, run_dir=None, rank=0, world_size=1)
    assert site.imported() == {"at_failure"}


def test_a_broken_plugin_is_not_tried_again(site) -> None:
    _install_broken(site)
    host = build_plugin_manager(listing=True)
    host.load_all()
    (failure,) = host.failures
    host.load_all()
    assert host.failures == (failure,)
    assert "broken_plugin" not in sys.modules


def test_hosts_are_independent_of_each_other() -> None:
    class Offers:
        @hookimpl
        def moeframe_offer_dispatchers(self):
            return [DispatcherOffer(name="ring", summary="s", build=print, traits=print)]

    plugin = Offers()
    for _ in range(2):
        host = build_plugin_manager([plugin], entry_points=False)
        assert Catalog(host).names("dispatcher") == ["ring"]
