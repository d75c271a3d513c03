"""`moeframe verify` and `moeframe plugins test` as a user calls them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from moeframe.cli.check import check
from moeframe.cli.verify import verify_recipe
from moeframe.errors import RecipeError

ROOT = Path(__file__).parents[3]
TINY = ROOT / "recipes" / "deepseek_v3" / "tiny.yaml"
QUICKSTART = ROOT / "recipes" / "quickstart.yaml"
PLUGINS = ROOT / "tests" / "data" / "plugins"


CPU_SECONDS = 90
"""Of the quickstart: the limit of 90 s on two idle cores, in a measure that other work does not change."""


def moeframe(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PLUGINS), "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "moeframe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=600)


def cpu_seconds() -> float:
    """Return what all processes used that this one has waited for, theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_the_quickstart_is_proved_within_its_limit() -> None:
    before = cpu_seconds()
    done = moeframe("verify", QUICKSTART, "--json")
    used = cpu_seconds() - before
    assert done.returncode == 0, done.stderr
    assert 3 < used < CPU_SECONDS  # less could not have started four processes
    found = json.loads(done.stdout)
    assert found["verdict"] == "proved"
    assert found["findings"] == found["notes"] == []
    rows = {row["title"]: (row["own"], row["processes"], row["verdict"]) for row in found["layouts"]}
    assert rows == {
        "reference": (False, 1, "reference"),
        "EP 2 (2 processes)": (True, 2, "equal"),
        "one process": (False, 1, "equal"),
        "DP 2 (2 processes)": (False, 2, "equal"),
        "EP 4 (4 processes)": (False, 4, "equal"),
        "EP 2 x expert-data 2 (4 processes)": (False, 4, "equal"),
    }
    assert all(0 < row["worst"]["gradients"] < 1e-9 for row in found["layouts"][1:])
    lines = done.stderr.splitlines()
    assert lines[0].endswith("starting 4 processes")
    assert lines[-1].startswith("verify 6/6")


def test_a_difference_ends_with_1_and_names_parameters_ratio_and_cause() -> None:
    faulty = ("sharding.name=faulty", "sharding.options.fault=averages")
    done = moeframe("verify", TINY, *faulty, "--plugin", "faulty_parts")
    assert done.returncode == 1, done.stderr
    assert "gradients of *: x0.500 = 1/dp: averaged over the data ranks in place of summed" in done.stdout
    assert "DIFFERENT" in done.stdout
    assert "NOT the same numbers" in done.stdout


@pytest.mark.sweep
def test_a_layout_that_fails_ends_with_3() -> None:
    faulty = ("dispatcher.name=faulty", "dispatcher.options.fault=raises", "parallel.ep=2", "launch.nproc_per_node=2")
    done = moeframe("verify", TINY, *faulty, "--plugin", "faulty_parts")
    assert done.returncode == 3, done.stderr
    assert "EP 2 (2 processes): could not be run" in done.stdout
    assert "NOT PROVED" in done.stdout


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("train.sede=1",), "train.sede"),
        (
            ("dispatcher.name=faulty", "dispatcher.options.fault=knows no float64", "train.precision=bfloat16"),
            "verify computes on the CPU in float64, and it knows bfloat16 only",
        ),
        (("dispatcher.name=nothing",), "no installed plugin offers it"),
    ],
)
def test_what_cannot_be_proved_is_refused_with_the_reason(overrides: tuple[str, ...], words: str) -> None:
    done = moeframe("verify", TINY, *overrides, "--plugin", "faulty_parts")
    assert done.returncode == 2
    assert words in done.stderr
    assert not done.stdout


def test_the_kit_passes_for_a_good_dispatcher() -> None:
    done = moeframe("plugins", "test", "local", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["name"], found["device"]) == ("dispatcher", "local", "cpu")
    assert "ok" in {row["verdict"] for row in found["checks"]} <= {"ok", "left out"}


def test_the_kit_fails_for_a_faulty_dispatcher_and_says_what_is_wrong() -> None:
    done = moeframe("plugins", "--plugin", "faulty_parts", "test", "faulty_alone")
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("workload dropped")]
    assert "FAILED  1. rank 0: AssertionError: dropped, call 1, rank 0" in line
    assert "workload balanced" in done.stdout
    (told,) = [line for line in lines if line.startswith("  1. ")]
    assert "1. 3 checks, the first is `workload dropped` on 1 rank (then `workload rotating`, " in told
    assert ". dropped, call 1, rank 0: output: " in told
    numbers = [int(line.split(".")[0]) for line in lines if line.startswith("  ") and line.strip()[0].isdecimal()]
    assert numbers == list(range(1, len(numbers) + 1))
    failed = [line for line in lines if "  FAILED  " in line]
    assert len(failed) == len(numbers)
    assert lines[-1].startswith("dispatcher 'faulty_alone' on cpu: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nothing",), "no plugin offers it as a kind that has a conformance kit"),
        (
            ("synthetic", "--kind", "data"),
            "there is no conformance kit for it. Kits: dispatcher, sharding, schedule, compute",
        ),
        (("faulty", "--plugin", "faulty_parts"), "'faulty' is offered as dispatcher and as sharding"),
    ],
)
def test_a_kit_that_cannot_be_chosen_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = moeframe("plugins", "test", *arguments)
    assert done.returncode == 2
    assert words in done.stderr


def test_plugins_still_lists() -> None:
    done = moeframe("plugins", "--json", "--plugin", "faulty_parts")
    assert done.returncode == 0
    offers = {(offer["kind"], offer["name"]) for offer in json.loads(done.stdout)["offers"]}
    assert {("dispatcher", "alltoall"), ("sharding", "faulty")} <= offers
    assert not any(name == "verify_reference" for _, name in offers)


@pytest.mark.parametrize("kind", ["dispatcher", "sharding", "schedule", "compute", "data"])
def test_the_reference_is_refused_by_name_as_check_refuses_it(kind: str) -> None:
    override = [f"{kind}.name=verify_reference"]
    with pytest.raises(RecipeError) as checked:
        check(QUICKSTART, override, ())
    with pytest.raises(RecipeError) as refused:
        verify_recipe(QUICKSTART, override, ())
    assert str(refused.value) == str(checked.value)
    assert "no installed plugin offers it" in str(refused.value)
    assert "verify_reference," not in str(refused.value)
