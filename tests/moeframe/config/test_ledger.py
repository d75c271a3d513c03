"""Old names: what the loader, the shims and the ledger itself make of them."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from moeframe.config import old_keys, old_names
from moeframe.config.ledger import Change, changes, find_change, forget_what_was_told
from moeframe.config.load import load_recipe
from moeframe.config.old_names import ABSENT, carried_over
from moeframe.config.schema import DispatcherConfig
from moeframe.errors import MoeframeDeprecationWarning

OLD, NEW = "dispatcher.enable_deepep", "dispatcher.use_flex_dispatcher"
STORY = f"{OLD} is called {NEW} since 0.2.0; the old name works until 0.4.0, which refuses it."
DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(autouse=True)
def _as_a_new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    forget_what_was_told()
    yield
    forget_what_was_told()


def declare(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, Any]) -> None:
    """Put other entries in the place of the ledger's."""
    made = tuple(
        Change(**{"kind": "rename", "surface": "config", "since": "0.1.0", "remove_in": "9.0.0", "reason": "", **entry})
        for entry in entries
    )

    def of_surface(surface: str) -> tuple[Change, ...]:
        return tuple(change for change in made if change.surface == surface)

    monkeypatch.setattr(old_keys, "changes", of_surface)
    monkeypatch.setattr(old_names, "changes", of_surface)
    monkeypatch.setattr("moeframe.config.ledger.changes", of_surface)


def told(call: Any, *arguments: Any) -> tuple[Any, list[str]]:
    """Return what a call returns, and the deprecations it told."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call(*arguments)
    assert all(warning.category is MoeframeDeprecationWarning for warning in caught)
    return result, [str(warning.message) for warning in caught]


def test_every_entry_gives_two_minor_releases_and_a_reason() -> None:
    entries = [*changes("config"), *changes("python")]
    assert len(entries) >= 3
    for change in entries:
        since, gone = Version(change.since), Version(change.remove_in)
        assert gone.major > since.major or gone.minor >= since.minor + 2
        assert change.reason.endswith(".")
        assert not change.is_over


@pytest.mark.parametrize(("given", "value"), [("true", True), ("false", False), ("null", None), ("~", None)])
def test_an_old_key_is_carried_over_from_a_file_and_an_override(recipes, base, given: str, value: object) -> None:
    loaded, messages = told(recipes.load, f"dispatcher: {{enable_deepep: {given}}}\n")
    assert loaded.recipe.dispatcher.use_flex_dispatcher is value
    assert messages == [f"r.yaml:2:14: {STORY} `moeframe migrate r.yaml` rewrites it."]
    loaded, messages = told(base, f"{OLD}={given}")
    assert loaded.recipe.dispatcher.use_flex_dispatcher is value
    assert messages == [f"{OLD}={given}: {STORY} Write {NEW}."]


def test_the_warning_is_shown_at_the_line_of_the_recipe(recipes) -> None:
    with pytest.warns(MoeframeDeprecationWarning) as caught:
        recipes.load("dispatcher:\n  enable_deepep: false\n")
    assert [(warning.filename, warning.lineno) for warning in caught] == [("r.yaml", 3)]


def test_all_places_are_one_warning_told_once(recipes) -> None:
    recipes.write(recipes.base.replace("{name: plain}", "{name: plain, enable_deepep: true}"), "base.yaml")
    path = recipes.write("extends: base.yaml\ndispatcher: {enable_deepep: false}\n")
    loaded, (message,) = told(load_recipe, path, [f"{OLD}=null"])
    assert loaded.recipe.dispatcher.use_flex_dispatcher is None
    assert message.startswith(f"base.yaml:20:27, r.yaml:2:14, {OLD}=null: {STORY}")
    assert message.endswith("`moeframe migrate base.yaml r.yaml` rewrites it.")
    assert told(load_recipe, path, [f"{OLD}=null"])[1] == []


@pytest.mark.parametrize(("base_key", "own_key"), [("enable_deepep", NEW[11:]), (NEW[11:], "enable_deepep")])
def test_the_higher_layer_wins_by_whichever_name(recipes, base_key: str, own_key: str) -> None:
    recipes.write(recipes.base.replace("{name: plain}", f"{{name: plain, {base_key}: true}}"), "base.yaml")
    path = recipes.write(f"extends: base.yaml\ndispatcher: {{{own_key}: false}}\n")
    loaded, messages = told(load_recipe, path)
    assert loaded.recipe.dispatcher.use_flex_dispatcher is False
    assert len(messages) == 1


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_both_names_must_agree(recipes) -> None:
    assert recipes.lines("dispatcher:\n  use_flex_dispatcher: true\n  enable_deepep: false\n") == [
        f"r.yaml:4:3: {OLD}: given false, and {NEW}, which is its name since 0.2.0, is true (r.yaml:3:3). "
        f"Keep {NEW} only."
    ]
    assert recipes.lines("", f"{NEW}=true", f"{OLD}=null") == [
        f"{OLD}=null: {OLD}: given null, and {NEW}, which is its name since 0.2.0, is true ({NEW}=true). "
        f"Keep {NEW} only."
    ]
    assert recipes.lines("", "dispatcher={name: plain, enable_deepep: true, use_flex_dispatcher: false}") != []
    agreeing = recipes.load("dispatcher: {use_flex_dispatcher: True, enable_deepep: true}\n", f"{NEW}=~", f"{OLD}=null")
    assert agreeing.recipe.dispatcher.use_flex_dispatcher is None


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_a_whole_section_as_an_override_is_translated_too(base) -> None:
    assert base("dispatcher={name: plain, enable_deepep: false}").recipe.dispatcher.use_flex_dispatcher is False


def test_references_to_an_old_key_are_followed(recipes) -> None:
    text = f"train: {{compile: '${{{OLD}}}'}}\ndispatcher: {{use_flex_dispatcher: true}}\n"
    loaded, (message,) = told(recipes.load, text)
    assert loaded.recipe.train.compile is True
    assert message.startswith("r.yaml:2:18: ")


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_explain_tells_by_which_name_a_value_was_given(recipes) -> None:
    story = str(recipes.load("dispatcher: {enable_deepep: false}\n").provenance[NEW])
    assert story == f"r.yaml:2:29 (written as {OLD}, its name before 0.2.0)"


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_strictness_is_as_ever(recipes) -> None:
    assert recipes.lines("dispatcher: {enable_deepep: perhaps, enable_deepp: true}\n") == [
        f"r.yaml:2:29: {NEW}: given 'perhaps'; must be true or false or null. Write true or false.",
        "r.yaml:2:38: dispatcher.enable_deepp: unknown key 'enable_deepp'. "
        "Keys of dispatcher: name, options, use_flex_dispatcher.",
    ]


def test_other_ranks_tell_nothing(recipes, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert told(recipes.load, "dispatcher: {enable_deepep: false}\n")[1] == []


def test_a_name_past_its_window_is_refused_with_its_successor(recipes, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, {"old": OLD, "new": NEW, "remove_in": "0.2.0"})
    assert recipes.lines("dispatcher: {enable_deepep: true}\n") == [
        f"r.yaml:2:14: {OLD}: given true, but 0.2.0 removed {OLD}; since 0.1.0 it is {NEW}. "
        f"Write {NEW}: `moeframe migrate` does it."
    ]


def test_a_key_that_goes_without_successor_warns_and_is_then_refused(recipes, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, {"kind": "remove", "old": "data.repeat", "reason": "Data always repeats."})
    loaded, messages = told(recipes.load, "data: {repeat: false}\n")
    assert loaded.recipe.data.repeat is False
    assert messages[0].startswith("r.yaml:2:8: data.repeat is deprecated since 0.1.0, and 9.0.0 refuses it.")
    declare(monkeypatch, {"kind": "remove", "old": "data.repeat", "reason": "Data always repeats.", "remove_in": "0.2"})
    assert recipes.lines("data: {repeat: false}\n")[0] == (
        "r.yaml:2:8: data.repeat: given false, but 0.2 removed data.repeat. Data always repeats. Remove the key."
    )


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_sections_move_and_values_are_renamed(recipes, base, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(
        monkeypatch,
        {"old": "optimiser", "new": "optimizer"},
        {"kind": "move", "old": "data.steps", "new": "train.steps"},
        {"old": "train.dtype", "new": "train.precision", "value_map": {"full": "float32", "null": "float64"}},
    )
    loaded = recipes.load("optimiser: {eps: 1e-5}\ndata: {steps: 7}\ntrain: {dtype: full}\n")
    assert (loaded.recipe.optimizer.eps, loaded.recipe.train.steps) == (1e-5, 7)
    assert loaded.recipe.train.precision == "float32"
    loaded = base("optimiser.eps=1e-5", "data={name: bytes, steps: 7}", "train.dtype=~")
    assert (loaded.recipe.optimizer.eps, loaded.recipe.train.steps) == (1e-5, 7)
    assert loaded.recipe.train.precision == "float64"
    assert base("train.dtype=bfloat16").recipe.train.precision == "bfloat16"


@pytest.mark.filterwarnings("ignore::moeframe.errors.MoeframeDeprecationWarning")
def test_a_recipe_that_0_1_0_saved_loads() -> None:
    recipe = load_recipe(DATA / "recipe_of_0.1.0.yaml").recipe
    assert (recipe.dispatcher.use_flex_dispatcher, recipe.train.steps) == (False, 2)


def test_parameters_are_carried_over_and_told_at_the_line_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, {"surface": "python", "old": "pkg.f(old)", "new": "pkg.f(new)", "value_map": {"1": "one"}})

    def f(*, new: Any = None, old: Any = ABSENT) -> Any:
        return carried_over("pkg.f(old)", old, new, unset=None)

    assert (f(), f(new=False)) == (None, False)
    with pytest.warns(
        MoeframeDeprecationWarning, match=r"pkg.f\(old\) is called pkg.f\(new\) since 0.1.0.*9.0.0"
    ) as seen:
        assert f(old=False) is False
    assert seen[0].filename == __file__
    assert [f(old=value) for value in (True, None, 0, 1)] == [True, None, 0, "one"]  # told already
    assert f(old=3, new=3) == 3
    with pytest.raises(TypeError, match=r"pkg.f: given old=False and new=True, which contradict each other"):
        f(old=False, new=True)
    declare(monkeypatch, {"surface": "python", "old": "pkg.f(old)", "new": "pkg.f(new)", "remove_in": "0.2.0"})
    with pytest.raises(TypeError, match=r"0.2.0 removed pkg.f.old.; since 0.1.0 it is pkg.f.new.. Write new."):
        f(old=False)


@pytest.mark.parametrize("value", [True, False, None])
def test_a_field_is_made_and_read_by_its_old_name(value: object) -> None:
    with pytest.warns(MoeframeDeprecationWarning) as seen:
        made = DispatcherConfig(name="x", enable_deepep=value)
    assert [Path(warning.filename).name for warning in seen] == ["test_ledger.py"]
    assert made == DispatcherConfig(name="x", use_flex_dispatcher=value)
    forget_what_was_told()
    with pytest.warns(MoeframeDeprecationWarning) as seen:
        assert made.enable_deepep is value
    assert [Path(warning.filename).name for warning in seen] == ["test_ledger.py"]
    assert [spec.name for spec in dataclasses.fields(made)] == ["name", "options", "use_flex_dispatcher"]
    with pytest.raises(TypeError, match="contradict"):
        DispatcherConfig(name="x", use_flex_dispatcher="other", enable_deepep=value)
    with pytest.raises(TypeError, match="unexpected keyword argument 'no_such'"):
        DispatcherConfig(name="x", no_such=1)


def test_a_shim_without_an_entry_is_a_bug() -> None:
    with pytest.raises(LookupError, match="no python entry with old = 'pkg"):
        find_change("python", "pkg.g(old)")
