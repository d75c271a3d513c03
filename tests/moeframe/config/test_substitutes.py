"""A backend that cannot be used is replaced where the recipe names another one, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeframe.config.compose import Composition, compose
from moeframe.config.explain import explain
from moeframe.config.load import load_recipe
from moeframe.config.substitutes import sentences
from moeframe.errors import RecipeError
from moeframe.hooks import hookimpl
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

ROOT = Path(__file__).parents[3]
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
WANTED = "dispatcher.name=elsewhere"
INSTEAD = "on_unavailable.dispatcher=alltoall"


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "data" / "plugins"))

    def composed(*overrides: str, device_kind: str | None = "cpu", plugins=()) -> Composition:
        loaded = load_recipe(QUICKSTART, overrides)
        catalog = Catalog(build_plugin_manager(["elsewhere_only", *plugins], environment={}))
        return compose(loaded, catalog, device_kind=device_kind)

    return composed


def refused(composed, *overrides: str, **where) -> str:
    with pytest.raises(RecipeError) as caught:
        composed(*overrides, **where)
    return "\n".join(map(str, caught.value.problems))


def test_without_a_word_it_is_refused_with_the_way_out(composed) -> None:
    text = refused(composed, WANTED)
    assert "'elsewhere' cannot be used here: the module no_such_module is not installed. It cannot be had." in text
    assert "Nothing is chosen in its place. Use dispatcher.name=allgather or alltoall; or " in text
    assert "on_unavailable.dispatcher=allgather, which is used wherever 'elsewhere' cannot be. " in text
    assert text.endswith("`moeframe plan` checks this recipe for a machine that has what is missing.")


def test_plan_is_named_only_where_it_would_take_the_recipe(composed) -> None:
    text = refused(composed, "sharding.name=on_gpus", "launch.device=cpu")
    assert "sharding.name: 'on_gpus' cannot be used here: it runs on cuda devices, and this job on cpu." in text
    assert "moeframe plan" not in text


def test_a_machine_without_the_device_of_the_recipe_replaces_for_the_missing_module_alone(composed) -> None:
    gpus = ("launch.device=cuda", "on_unavailable.dispatcher=allgather")
    assert composed(*gpus, device_kind=None).substitutions == ()
    (one,) = composed(WANTED, *gpus, device_kind=None).substitutions
    assert one.reasons == ("the module no_such_module is not installed. It cannot be had.",)


def test_the_named_one_takes_its_place_and_the_composition_says_so(composed) -> None:
    composition = composed(WANTED, INSTEAD)
    assert composition.dispatcher.offer.name == "alltoall"
    assert composition.dispatcher.options == composition.dispatcher.offer.options()
    assert not composition.dispatcher.traits.fused
    (one,) = composition.substitutions
    assert (one.kind, one.wanted, one.used) == ("dispatcher", "elsewhere", "alltoall")
    assert str(one) == (
        "dispatcher 'alltoall' in place of 'elsewhere' (on_unavailable.dispatcher), which cannot be used here: "
        "the module no_such_module is not installed. It cannot be had."
    )
    assert composition.recipe.dispatcher.name == "elsewhere"


def test_one_that_can_be_used_is_never_replaced(composed) -> None:
    composition = composed("on_unavailable={dispatcher: allgather, sharding: zero1, schedule: gpipe}")
    assert composition.substitutions == ()
    assert (composition.dispatcher.offer.name, composition.sharding.offer.name) == ("alltoall", "fsdp2")
    assert composed(INSTEAD).substitutions == ()


def test_devices_of_another_kind_are_a_reason_also_where_only_the_recipe_tells(composed) -> None:
    instead = ("sharding.name=on_gpus", "on_unavailable.sharding=fsdp2")
    (one,) = composed(*instead).substitutions
    assert one.reasons[0].startswith("it runs on cuda devices, and this job on cpu.")
    (one,) = composed(*instead, "launch.device=cpu", device_kind=None).substitutions
    assert one.used == "fsdp2"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("dispatcher.options.chanels=3",), "unknown key 'chanels'. Did you mean 'channels'?"),
        (("dispatcher.options.channels=0",), "refuses its options: channels is 0"),
        (("dispatcher.use_flex_dispatcher=true",), "'alltoall' is not a fused one"),
        (("on_unavailable.dispatcher=alltoal",), "Did you mean 'alltoall'?"),
        (("on_unavailable.dispatcher=local",), "'local' (in place of 'elsewhere') works between at most 1 rank"),
        (("on_unavailable.dispatcher=[alltoall]",), "on_unavailable.dispatcher: given"),
        (("on_unavailable.data=synthetic",), "on_unavailable.data: unknown key 'data'"),
        (("dispatcher.name=elsewheer",), "no installed plugin offers it"),
    ],
)
def test_nothing_else_is_a_reason_to_replace(composed, overrides: tuple[str, ...], words: str) -> None:
    assert words in refused(composed, WANTED, INSTEAD, *overrides)


def test_a_substitute_must_be_usable_itself(composed) -> None:
    text = refused(composed, "sharding.name=gone", "on_unavailable.sharding=on_gpus")
    assert "on_unavailable.sharding: 'on_gpus' cannot be used here either: it runs on cuda devices" in text
    assert "sharding.name: 'gone' cannot be used here: the module no_such_module is not installed" in text


def test_what_does_not_fit_of_a_substitute_is_reported_of_it(composed) -> None:
    pipeline = ("launch.nproc_per_node=2", "parallel.pp=2", "parallel.ep=1", "schedule.name=zbv")
    instead = ("sharding.name=gone", "on_unavailable.sharding=fsdp2")
    text = refused(composed, *pipeline, *instead)
    assert "on_unavailable.sharding: 'fsdp2' (in place of 'gone') frees gathered parameters" in text
    assert "Name another substitute, or sharding.name=fsdp2 with the options it needs." in text
    assert "sharding.options" not in text
    text = refused(composed, WANTED, "on_unavailable.dispatcher=local")
    assert "parallel.ep: given 2; dispatcher 'local' (in place of 'elsewhere') works between at most 1 rank" in text


def test_why_a_backend_cannot_be_used_comes_first_and_in_sentences(composed) -> None:
    backend = ("sharding.name=gone", "dispatcher.name=local", "launch.device=cuda")
    first, *others = refused(composed, *backend, device_kind=None).splitlines()
    assert "sharding.name: 'gone' cannot be used here: the module" in first
    assert [line for line in others if "parallel.ep: given 2" in line]
    assert sentences(("the one is gone.", "it runs on cuda")) == "the one is gone. It runs on cuda."


class Reader:
    """Sees the recipe as plugins do."""

    def __init__(self) -> None:
        self.seen = []

    @hookimpl
    def moeframe_check_recipe(self, recipe):
        self.seen.append((recipe.dispatcher.name, dict(recipe.dispatcher.options), recipe.on_unavailable.dispatcher))
        return []


def test_plugins_check_the_recipe_that_will_run(composed) -> None:
    reader = Reader()
    composed(WANTED, "dispatcher.options.channels=4", INSTEAD, plugins=[reader])
    assert reader.seen == [("alltoall", {}, None)]


def test_explain_shows_what_is_used_and_why(composed) -> None:
    overrides = (WANTED, "dispatcher.options.channels=4", INSTEAD)
    text = explain(load_recipe(QUICKSTART, overrides), composed(*overrides), "dispatcher")
    lines = {line.split(":")[0]: line for line in text.splitlines()}
    assert lines["dispatcher.name"].startswith("dispatcher.name: elsewhere")
    assert lines["dispatcher.options.channels"].startswith("dispatcher.options.channels: 4")
    assert lines["dispatcher.used"].startswith("dispatcher.used: alltoall")
    assert "derived: on_unavailable.dispatcher, because the module no_such_module is not installed." in text
