from __future__ import annotations

import pytest

from moeframe.errors import DuplicateOfferError, PluginLoadError, UnknownOfferError
from moeframe.hooks import DispatcherOffer, hookimpl
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager


class Offers:
    def __init__(self, *names: str) -> None:
        self.names = names

    @hookimpl
    def moeframe_offer_dispatchers(self):
        return [DispatcherOffer(name=name, summary="s", build=print, traits=print) for name in self.names]


def _catalog(*names: str) -> Catalog:
    return Catalog(build_plugin_manager([Offers(*names)], entry_points=False))


def test_an_unknown_name_lists_what_is_offered_and_the_nearest() -> None:
    with pytest.raises(UnknownOfferError) as caught:
        _catalog("local", "deepep", "alltoall").resolve("dispatcher", "depep")
    assert str(caught.value) == (
        "dispatcher.name = 'depep': no installed plugin offers it. Offered: alltoall, deepep, local. "
        "Did you mean 'deepep'?"
    )
    assert caught.value.offered == ("alltoall", "deepep", "local")


def test_a_name_of_another_kind_is_unknown() -> None:
    with pytest.raises(UnknownOfferError, match=r"sharding.name = 'local': .* Offered: nothing\."):
        _catalog("local").resolve("sharding", "local")


def test_an_unknown_name_mentions_the_plugins_that_are_broken(site) -> None:
    site.distribution("moeframe-bad", "0.1", {"bad": "bad_module"}, {"bad_module": "import nothing_of_that_name"})
    with pytest.raises(UnknownOfferError, match=r"plugin 'bad' \(moeframe-bad 0\.1.* No module named 'nothing_of_that"):
        Catalog(build_plugin_manager()).resolve("dispatcher", "ring")


def test_an_unknown_kind_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="Kinds: dispatcher, sharding, schedule, compute, data"):
        _catalog("local").resolve("dispatchers", "local")


def test_c98_a_name_of_two_distributions_is_an_error_that_names_both_when_it_is_asked_for(site) -> None:
    site.dispatcher("ring", distribution="moeframe-a", version="1.5")
    site.dispatcher("ring", distribution="moeframe-b", version="2.0")
    site.dispatcher("star")
    catalog = Catalog(build_plugin_manager())
    assert catalog.resolve("dispatcher", "star").name == "star"
    with pytest.raises(DuplicateOfferError) as caught:
        catalog.resolve("dispatcher", "ring")
    assert caught.value.distributions == ("moeframe-a 1.5", "moeframe-b 2.0")
    assert "plugin 'ring' (moeframe-a 1.5" in str(caught.value)
    assert "MOEFRAME_BLOCKED_PLUGINS=" in str(caught.value)
    assert [(kind, name, len(plugins)) for kind, name, plugins in catalog.duplicates()] == [("dispatcher", "ring", 2)]


def test_c98_a_module_of_the_user_does_not_override_an_installed_plugin(site) -> None:
    module = site.dispatcher("ring")
    site.module("mine", (site.folder / f"{module}.py").read_text())
    with pytest.raises(DuplicateOfferError) as caught:
        Catalog(build_plugin_manager(["mine"])).resolve("dispatcher", "ring")
    assert caught.value.distributions == ("moeframe-ring 1.0", "module mine")


def test_c98_blocking_one_of_two_leaves_the_other(site) -> None:
    for one in ("a", "b"):
        site.dispatcher("ring", distribution=f"moeframe-{one}")
    host = build_plugin_manager(environment={"MOEFRAME_BLOCKED_PLUGINS": "moeframe-b"})
    assert Catalog(host).resolve("dispatcher", "ring").name == "ring"
    assert site.imported() == {"moeframe_a_plugin"}


def test_a_plugin_that_does_not_parse_is_asked_for_by_a_name_in_it_or_by_its_entry_point(site) -> None:
    site.distribution("moeframe-s", "1", {"star": "does_not_parse"}, {"does_not_parse": "def ("})
    computed = """
        import nothing_of_that_name
        names = ["mesh"]
        OFFERS = [nothing_of_that_name.FastOffer(name="mesh_fast"), *names]
    """
    site.distribution("moeframe-m", "1", {"meshes": "computes"}, {"computes": computed})
    catalog = Catalog(build_plugin_manager(listing=True))
    with pytest.raises(PluginLoadError) as caught:
        catalog.resolve("dispatcher", "star")
    assert isinstance(caught.value.__cause__, SyntaxError)
    with pytest.raises(PluginLoadError, match="nothing_of_that_name"):
        catalog.resolve("dispatcher", "mesh_fast")


def test_records_hold_the_offer_or_the_failure_with_its_origin(site) -> None:
    site.dispatcher("ring", version="1.5")
    module = site.dispatcher("broken")
    path = site.folder / f"{module}.py"
    path.write_text(f"{path.read_text()}\nraise RuntimeError('too old')\n")
    broken, ring = Catalog(build_plugin_manager()).offers("dispatcher")
    assert ring.offer is not None
    assert (ring.name, ring.offer.name, ring.failure) == ("ring", "ring", None)
    assert ring.origin.installed == "moeframe-ring 1.5"
    assert broken.failure is not None
    assert (broken.name, broken.offer, broken.failure.cause) == ("broken", None, "RuntimeError: too old")


def test_a_name_that_reading_missed_is_found_by_importing(site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.dispatcher("ring")
    host = build_plugin_manager()
    monkeypatch.setattr(host.plugins[0], "index", None)
    assert Catalog(host).resolve("dispatcher", "ring").name == "ring"


def test_one_plugin_may_offer_several_kinds(site) -> None:
    source = """
        from moeframe.hooks import DispatcherOffer, ShardingOffer, hookimpl

        @hookimpl
        def moeframe_offer_dispatchers():
            return [DispatcherOffer(name="one", summary="s", build=print, traits=print)]

        @hookimpl
        def moeframe_offer_shardings():
            return [ShardingOffer(name="one", summary="s", build=print, traits=print)]
    """
    site.distribution("moeframe-two", "1", {"any_name": "both"}, {"both": source})
    catalog = Catalog(build_plugin_manager())
    assert catalog.resolve("dispatcher", "one").kind == "dispatcher"
    assert catalog.resolve("sharding", "one").kind == "sharding"
    assert catalog.duplicates() == []
