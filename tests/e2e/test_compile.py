"""torch.compile of the phases computes what plain phases compute."""

from __future__ import annotations

import pytest

from .conftest import SMALL, TINY, TWO, Runner


@pytest.mark.sweep  # compiling takes minutes
def test_a_compiled_run_on_two_ranks_has_the_losses_of_a_plain_one(moeframe: Runner) -> None:
    common = (str(TINY), *SMALL, *TWO, "train.precision=bfloat16", "train.steps=3", "checkpoint.final=false")
    plain = moeframe("run", *common)
    compiled = moeframe("run", *common, "train.compile=true", timeout=900)
    assert compiled.code == 0, compiled.err
    losses = [[line["ce_loss"] for line in ended.metrics] for ended in (plain, compiled)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
