from __future__ import annotations

import pickle

import pytest

from moeframe.errors import (
    DuplicateOfferError,
    JobFailedError,
    Location,
    MoeframeError,
    PluginError,
    PluginLoadError,
    Problem,
    RecipeError,
    TopologyError,
    UnavailableOfferError,
    UnknownOfferError,
)

ERRORS: list[MoeframeError] = [
    PluginError("broken"),
    PluginLoadError(message="m", plugin="p", distribution="d", version="1"),
    UnknownOfferError(kind="dispatcher", name="x", message="m", offered=("a", "b")),
    DuplicateOfferError(kind="dispatcher", name="x", message="m", distributions=("a 1", "b 2")),
    UnavailableOfferError(kind="dispatcher", name="x", reasons=("no GPU",)),
    TopologyError("t"),
    JobFailedError("j"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_crosses_processes_with_what_it_carries(error: MoeframeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert len({error, again}) == 2


def test_input_errors_end_with_2_and_failed_jobs_with_1() -> None:
    assert [type(error).exit_code for error in ERRORS] == [2, 2, 2, 2, 2, 2, 1]


def test_a_problem_reads_place_key_message_fix() -> None:
    problem = Problem(
        path="parallel.ep", message="6 is wrong.", fix="Use 2.", where=Location(file="r.yaml", line=3, column=7)
    )
    assert str(problem) == "r.yaml:3:7: parallel.ep: 6 is wrong. Use 2."
    assert str(RecipeError([problem, problem])).splitlines() == [str(problem)] * 2
