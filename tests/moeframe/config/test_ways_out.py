"""What a refusal tells to do is done here: the setting mends what it stands behind, and breaks nothing else."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from moeframe.config.compose import compose
from moeframe.config.load import read_recipe
from moeframe.errors import Problem, RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager

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
