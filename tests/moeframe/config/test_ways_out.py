"""What a refusal tells to do is done here: the setting mends what it stands behind, and breaks nothing else."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path

import pytest

from moeframe.config.compose import compose
from moeframe.config.load import read_recipe
from moeframe.config.schema import Recipe
from moeframe.config.typed import dotted_keys
from moeframe.errors import Problem, RecipeError
from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, ScheduleOffer, ShardingOffer, hookimpl
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.schedule import ScheduleTraits
from moeframe.protocols.sharding import ShardingTraits

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
SETTING = r"[a-z]\w*(?:\.[a-z]\w*)+=[\w.\[\],]*\w\]?"
BASE = ("model.num_hidden_layers=6", "train.global_batch_size=8", "train.micro_batch_size=4")
LAYOUTS = (
    (),
    ("launch.nproc_per_node=2", "parallel.ep=2"),
    ("launch.nproc_per_node=2", "parallel.pp=2"),
    ("launch.nproc_per_node=2", "parallel.dp_replicate=2"),
    ("launch.nproc_per_node=2", "parallel.pp=2", "parallel.ep=2"),
    ("launch.nproc_per_node=8", "parallel.pp=4", "parallel.layers_per_stage=[3,1,1,1]", "train.recompute=full"),
    ("parallel.ep=16", "model.hidden_size=96", "train.seq_len=100", "model.n_routed_experts=32"),
    ("train.precision=bfloat16", "train.compile=true", "model.vocab_size=100", "train.eval_every=2"),
)
DISPATCHERS = ("local", "alltoall", "deepep", "hybridep")
SHARDINGS = ("replicate", "fsdp2", "hsdp", "megatron_fsdp")
SCHEDULES = ("accumulate", "1f1b", "interleaved_1f1b", "zero_bubble", "zbv", "dualpipev", "overlap_1f1b")
COMPUTES = ("torch", "te")


@pytest.fixture(scope="module")
def problems_of():
    """Return a function from overrides of the tiny recipe to what refuses them on a machine that has everything."""
    catalog = Catalog(build_plugin_manager(environment={}))

    def problems(overrides: tuple[str, ...]) -> tuple[Problem, ...]:
        try:
            compose(read_recipe(TINY, overrides), catalog, elsewhere=True)
        except RecipeError as error:
            return error.problems
        return ()

    return problems


def ways_of(fix: str) -> list[tuple[str, ...]]:
    """Return the settings that a fix names; of a choice every one, of settings side by side all together."""
    ways = []
    for clause in re.split(r"; (?:or )?|: |\. |\.$", re.sub(r"To have \S+: ", "", fix)):
        found = re.search(rf"({SETTING}(?: {SETTING})*)((?:, \w+)* or \w+)?", clause)
        if found is not None:
            settings = found[1].split(" ")
            values = re.findall(r"\w+", (found[2] or "").replace(" or ", ", "))
            key = settings[-1].partition("=")[0]
            others = [f"{key}={value}" for value in values if value not in ("more", "less")]
            ways += [(*settings[:-1], last) for last in (settings[-1], *others)]
    return ways


def combinations() -> list[tuple[str, ...]]:
    """Return every layout with every schedule, each pair with some of the other parts, rather than all of all."""
    found = []
    for number, (layout, schedule) in enumerate(itertools.product(LAYOUTS, SCHEDULES)):
        parts = zip(
            ("dispatcher", "sharding", "compute"),
            (
                DISPATCHERS[number % len(DISPATCHERS)],
                SHARDINGS[(number // 2) % len(SHARDINGS)],
                COMPUTES[number // 3 % 2],
            ),
            strict=True,
        )
        found.append((*BASE, *layout, f"schedule.name={schedule}", *(f"{kind}.name={name}" for kind, name in parts)))
    return found


def is_about(problem: Problem) -> tuple[str, str]:
    """Return the key of a problem and its rule without numbers and names."""
    return problem.path, re.sub(r"'[^']*'|\d+|\bNone\b", "", problem.message.partition(";")[2] or problem.message)


def test_fixes_are_read_as_a_person_reads_them() -> None:
    assert ways_of("Use parallel.ep=2, 4 or 8; or dispatcher.name=a or b.") == [
        *(("parallel.ep=2",), ("parallel.ep=4",), ("parallel.ep=8",)),
        *(("dispatcher.name=a",), ("dispatcher.name=b",)),
    ]
    assert ways_of("Use launch.nproc_per_node=4 parallel.pp=2; or model.vocab_size=256 or more.") == [
        ("launch.nproc_per_node=4", "parallel.pp=2"),
        ("model.vocab_size=256",),
    ]


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_every_refusal_of_a_layout_or_of_parts_names_settings_that_mend_it(problems_of, few) -> None:
    refusals = ways = 0
    for overrides in combinations()[:: 5 if few else 1]:
        before = problems_of(overrides)
        known = {is_about(problem) for problem in before}
        for problem in before:
            found = ways_of(problem.fix)
            refusals += 1
            if not re.search(r"Legal: \d|Nearest legal: \d", problem.fix):
                assert found, f"{overrides}: {problem} names no setting"
            for way in found:
                ways += 1
                after = {is_about(one): str(one) for one in problems_of((*overrides, *way))}
                assert is_about(problem) not in after, f"{overrides}: {problem}\n{way} leaves {after}"
                new = [after[one] for one in after.keys() - known if one[0] in {p.path for p in before}]
                unknown = "does not divide" in problem.message  # degrees that do not factor hide other rules
                assert unknown or not new, f"{overrides}: {problem}\n{way} brings {new}"
    assert ways > 2 * refusals > 20, "the combinations test next to nothing"


def test_a_layout_that_needs_more_processes_is_given_whole(problems_of) -> None:
    two = (
        "launch.nproc_per_node=2",
        "parallel.ep=2",
        "train.global_batch_size=16",
        "sharding.name=hsdp",
        "dispatcher.name=alltoall",
    )
    (problem,) = problems_of((*two, "train.micro_batch_size=8"))
    way = ("launch.nproc_per_node=4", "parallel.dp_replicate=2", "train.micro_batch_size=4")
    assert ways_of(problem.fix)[0] == way
    assert problems_of((*two, *way)) == ()


def test_a_backend_that_this_machine_cannot_use_is_not_named() -> None:
    loaded = read_recipe(TINY, ["launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=local"])
    with pytest.raises(RecipeError) as caught:
        compose(loaded, Catalog(build_plugin_manager(environment={})), device_kind="cpu")
    assert str(caught.value).endswith("Use parallel.ep=1; or dispatcher.name=allgather or alltoall.")


PLAIN = DispatcherTraits(
    fused=False, host_syncs_per_layer=0, keeps_dispatch_input=False, keeps_expert_input=False, deterministic=True
)


class Missing:
    """A plugin with a backend of some kinds that no machine can use, and a check that wants no `allgather`."""

    def __init__(self, *, picky: bool = False) -> None:
        self.common = {
            "name": "missing",
            "summary": "Needs a module.",
            "build": print,
            "needs": Needs(modules=(ModuleNeed(name="no_such_module", install="It cannot be had."),)),
        }
        self.picky = picky

    @hookimpl
    def moeframe_offer_dispatchers(self):
        return [DispatcherOffer(**self.common, traits=lambda *_: PLAIN)]

    @hookimpl
    def moeframe_offer_shardings(self):
        return [ShardingOffer(**self.common, traits=lambda *_: ShardingTraits(parameters_stay_whole=True))]

    @hookimpl
    def moeframe_offer_schedules(self):
        traits = ScheduleTraits(splits_backward=False, pipelines=True)
        return [ScheduleOffer(**self.common, traits=lambda *_: traits, legal_micro_batches=lambda *_: None)]

    @hookimpl
    def moeframe_check_recipe(self, recipe):
        if not self.picky or recipe.dispatcher.name != "allgather":
            return []
        return [Problem(path="dispatcher.name", message="given 'allgather'; not with me.", fix="")]


@functools.cache
def catalog_of(*, picky: bool) -> Catalog:
    return Catalog(build_plugin_manager([Missing(picky=picky)], environment={}))


def refusals(overrides, *, picky=False) -> tuple[Problem, ...]:
    try:
        compose(read_recipe(TINY, overrides), catalog_of(picky=picky), device_kind="cpu")
    except RecipeError as error:
        return error.problems
    return ()


@pytest.mark.parametrize("kind", ["dispatcher", "sharding", "schedule"])
@pytest.mark.parametrize("layout", LAYOUTS[:4])
def test_what_is_named_in_place_of_a_missing_backend_passes_and_nothing_that_fits_is_left_out(kind, layout) -> None:
    schedule = "schedule.name=1f1b" if "parallel.pp=2" in layout else "schedule.name=accumulate"
    sharding = "sharding.name=hsdp" if "parallel.dp_replicate=2" in layout else "sharding.name=fsdp2"
    fits = (*BASE, *layout, "dispatcher.name=alltoall", sharding, schedule)
    missing = (*fits, f"{kind}.name=missing")
    (problem,) = refusals(missing)
    named = {way[0] for way in ways_of(problem.fix)}
    names = catalog_of(picky=False).names(kind)
    good = {f"{kind}.name={name}" for name in names if not refusals((*fits, f"{kind}.name={name}"))}
    assert good
    (substitute,) = named - good
    assert substitute.startswith(f"on_unavailable.{kind}=")
    assert named - {substitute} == good
    assert refusals((*missing, substitute)) == ()


def test_what_a_plugin_would_refuse_is_not_named() -> None:
    missing = (*BASE, *LAYOUTS[1], "dispatcher.name=missing")
    (problem,) = refusals(missing, picky=True)
    assert "Use dispatcher.name=alltoall; or on_unavailable.dispatcher=alltoall, " in problem.fix


def test_where_nothing_else_fits_that_is_said() -> None:
    (problem,) = refusals((*BASE, *LAYOUTS[1], "dispatcher.name=missing", "dispatcher.use_flex_dispatcher=true"))[:1]
    assert "No other dispatcher fits this recipe here (`moeframe plugins` lists them)." in problem.fix


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.sweep)])
def test_an_unreadable_value_anywhere_is_told_with_what_does_not_fit_beside_it(few) -> None:
    unfit = ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=local", "sharding.name=missing")
    keys = [key for key in dotted_keys(Recipe) if not few or key.startswith(("launch", "dispatcher", "parallel"))]
    assert len(keys) > 10
    for key in keys:
        assert refusals((*unfit, f"{key}=!")), key
