"""The debug modes in runs that a user starts."""

from __future__ import annotations

import json

import pytest

from .conftest import SMALL, TINY, TWO, Runner


@pytest.mark.sweep
def test_a_run_with_all_checks_and_recompute_trains_as_without(moeframe: Runner) -> None:
    plain = moeframe("run", str(TINY), *SMALL, *TWO, "data.name=synthetic")
    checks = ("debug.poison=true", "debug.ledger=true", "train.recompute=full")
    checked = moeframe("run", str(TINY), *SMALL, *TWO, "data.name=synthetic", *checks)
    assert (plain.code, checked.code) == (0, 0), checked.err
    assert [line["loss"] for line in checked.metrics] == [line["loss"] for line in plain.metrics]
    assert not (checked.run_dir / "ledger").exists()


def test_the_rank_that_fails_leaves_its_ledger(moeframe: Runner) -> None:
    faulty = ("data.name=faulty", "data.options.fault=raise", "data.options.rank=1", "train.steps=1000")
    ended = moeframe("--plugin", "faulty_data", "run", str(TINY), *SMALL, *TWO, *faulty, "debug.ledger=true")
    assert ended.code == 1
    assert ended.err.splitlines()[-2] == "rank 1 failed at step 5, data (forward): ValueError: bad batch"
    entries = [json.loads(line) for line in (ended.run_dir / "ledger" / "rank-1.jsonl").read_text().splitlines()]
    assert {"all_to_all", "all_reduce"} <= {entry["op"] for entry in entries}
    assert any(entry["site"]["place"].startswith("step 4") for entry in entries)
    assert not any(entry["site"]["place"].startswith("step 5") for entry in entries)
