"""Failures of a conformance kit that have one cause are told once, the plainest first."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Self

import pytest

from moeframe.errors import JobFailedError
from moeframe.hooks.offers import DispatcherOffer
from moeframe.testing.ranks import RankError, RankFailure, RankTimeoutError
from moeframe.verify import kits
from moeframe.verify.alike import Causes
from moeframe.verify.kits import Trial, run_kit
from moeframe.verify.outcome import Outcome, raised_at

OFFER = DispatcherOffer(name="any", summary="s", build=print, traits=lambda *_: None)


def failure(message: str, *, check: str = "workload balanced", ranks: int = 1, where: str = "") -> Outcome:
    return Outcome(check=check, ranks=ranks, verdict="FAILED", message=message, where=where)


def test_the_same_wrong_number_of_many_workloads_is_one_cause() -> None:
    causes = Causes()
    for place in ("balanced, call 0, rank 0", "ragged, call 3, rank 2", "first dispatch with one layout, rank 3"):
        what = "output: 43 of 64 elements differ, the first at (0, 2): -0.5, expected 1.0"
        causes.add(failure(f"rank 2: AssertionError: {place}: {what}", ranks=2))
    causes.add(failure("rank 0: AssertionError: ragged, call 0, rank 1: gradient of x: 4 of 8 elements differ"))
    assert [len(cause.outcomes) for cause in causes] == [3, 1]
    first, second = causes
    (line,) = first.lines(good_on=[1])
    start = "1. 3 checks, the first is `workload balanced` on 2 ranks; on 2 ranks only, never on 1. "
    assert line.startswith(f"{start}balanced, call 0, rank 0: output: 43 of 64")
    assert not any("only" in line for line in first.lines(good_on=[]))
    assert second.lines(good_on=[])[0].startswith("2. 1 check: `workload balanced` on 1 rank. ragged, call 0, rank 1: ")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "RuntimeError: Mismatch in shape: torch.Size([8, 8]) and torch.Size([7, 8]).",
            "RuntimeError: Mismatch in shape: torch.Size([9, 2]) and torch.Size([8, 2]).",
        ),
        (
            "AssertionError: world 2, ep 1, rank 1, 3 micro-batch(es): x0.500 = 1/dp or 1/edp: averaged (off by 0.6)",
            "AssertionError: world 4, ep 2, rank 0: x0.250 = 1/dp: averaged (off by 0.8 at (3, 2) where)",
        ),
    ],
)
def test_other_sizes_of_the_same_are_no_other_cause(one: str, other: str) -> None:
    causes = Causes()
    causes.add(failure(f"rank 0: {one}"))
    causes.add(failure(f"rank 3: {other}"))
    assert len(causes) == 1


def test_the_same_words_from_another_place_are_another_cause() -> None:
    causes = Causes()
    for where in ("own.py:3, in dispatch", "own.py:3, in dispatch", "own.py:9, in combine"):
        causes.add(failure("rank 0: KeyError: 'x'", where=where))
    first, second = causes
    assert (len(first.outcomes), len(second.outcomes)) == (2, 1)
    assert first.lines(good_on=[])[1] == "   raised at own.py:3, in dispatch"


def test_the_place_is_the_innermost_one_of_the_plugin() -> None:
    try:
        int("not a number")  # raises in C; a frame of the standard library would be further in
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    below = '  File "{}", line 7, in run\n'
    core, torch = Path(kits.__file__), Path("/x/site-packages/torch/nn/modules/module.py")
    text = below.format(core) + text + below.format(torch) + below.format("<frozen importlib>")
    assert raised_at(text).startswith(f"{__file__}:")
    assert raised_at(text).endswith("in test_the_place_is_the_innermost_one_of_the_plugin")
    assert raised_at(below.format(core) + below.format(torch)) == ""


def test_of_a_silent_rank_the_place_is_where_it_waits() -> None:
    stack = (
        'Thread 0x1 (most recent call first):\n  File "/a/own.py", line 5 in wait\n  File "/a/own.py", line 9 in go\n'
    )
    assert raised_at(stack) == "/a/own.py:5, in wait"


class Pool:
    """Stands in for the ranks: every check of `silent` gets no answer, every other one raises on rank 1."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, call, *, world_size, timeout) -> None:
        error: JobFailedError
        if call == "silent":
            error = RankTimeoutError("no answer within 120 s from rank(s) 0", (0,))
        else:
            first = RankFailure(rank=1, kind="KeyError", message="x", traceback='  File "/a/own.py", line 2, in go\n')
            error = RankError("rank 1: KeyError: x\n--- rank 1, traceback: ...", {1: first})
        raise error


def test_a_failure_keeps_its_traceback_and_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kits, "RankPool", Pool)
    monkeypatch.setitem(kits.KITS, "dispatcher", lambda *_: [Trial(check="one", ranks=2, call="raises")])
    (one,) = run_kit(OFFER, device="cpu", most_ranks=2)
    assert (one.verdict, one.message, one.where) == ("FAILED", "rank 1: KeyError: x", "/a/own.py:2, in go")
    assert "--- rank 1, traceback" in one.details


def test_a_backend_that_never_answers_is_left_alone_after_two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = ["raises", "silent", "silent", "raises"]
    monkeypatch.setattr(kits, "RankPool", Pool)
    monkeypatch.setitem(kits.KITS, "dispatcher", lambda *_: [Trial(check=call, ranks=2, call=call) for call in calls])
    *failed, last = run_kit(OFFER, device="cpu", most_ranks=2)
    assert [one.verdict for one in failed] == ["FAILED"] * 3
    assert (last.verdict, last.message) == ("left out", "2 checks had no answer within 120 s")
