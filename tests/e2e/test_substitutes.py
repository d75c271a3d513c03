"""What takes the place of a backend is told before, during and after a run."""

from __future__ import annotations

import json

from .conftest import SMALL, TINY, TWO, Runner

ELSEWHERE = ("--plugin", "elsewhere_only")
INSTEAD = ("dispatcher.name=elsewhere", "on_unavailable.dispatcher=alltoall", "train.steps=2")
SENTENCE = (
    "dispatcher 'alltoall' in place of 'elsewhere' (on_unavailable.dispatcher), which cannot be used here: the module"
)


def test_a_run_with_a_substitute_tells_so_everywhere(moeframe: Runner) -> None:
    ended = moeframe(*ELSEWHERE, "run", str(TINY), *SMALL, *TWO, *INSTEAD)
    assert ended.code == 0, ended.err
    assert "  dispatcher alltoall, sharding replicate, schedule accumulate, compute torch" in ended.out.splitlines()
    assert "  dispatcher: alltoall in place of elsewhere" in ended.out.splitlines()
    assert ended.err.count(f"warning: {SENTENCE}") == 1
    (told,) = json.loads((ended.run_dir / "summary.json").read_text())["substitutions"]
    assert (told["kind"], told["wanted"], told["used"]) == ("dispatcher", "elsewhere", "alltoall")
    assert "dispatcher:\n  name: elsewhere\n" in (ended.run_dir / "recipe.yaml").read_text()
    checked = moeframe(*ELSEWHERE, "check", str(TINY), *SMALL, *TWO, *INSTEAD)
    assert checked.code == 0
    assert f"  substituted  {SENTENCE}" in checked.out


def test_ranks_that_would_choose_differently_end_with_both_reasons(moeframe: Runner) -> None:
    moeframe.env["ELSEWHERE_HERE"] = "1"
    ended = moeframe(*ELSEWHERE, "run", str(TINY), *SMALL, *TWO, *INSTEAD)
    assert ended.code == 1
    assert "the ranks do not choose the same backends" in ended.err
    assert f"rank 0: {SENTENCE}" in ended.err
    assert "rank 1: nothing is substituted" in ended.err
