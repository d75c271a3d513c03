"""What no cell of the matrix holds is proved too; `tests/moeframe/cli/test_verify.py` proves the whole quickstart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from moeframe.verify import Verdict

Verified = Callable[..., Verdict]


@pytest.mark.parametrize(
    ("overrides", "only"),
    [
        (
            ("sharding.name=zero1", "dispatcher.name=allgather", "train.recompute=full", "model.capacity_factor=1.0"),
            "EP 2 x expert-data 2 (4 processes)",
        ),
        (
            (
                "schedule.name=zbv",
                "parallel.pp=2",
                "model.num_hidden_layers=4",
                "launch.nproc_per_node=4",
                "model.num_nextn_predict_layers=2",
                "model.q_lora_rank=null",
            ),
            "PP 2 x EP 2 (4 processes)",
        ),
        (
            (
                "data.name=synthetic",
                "data.options.routing=skewed",
                "sharding.name=fsdp2",
                "train.recompute=selective",
                "model.n_shared_experts=0",
            ),
            "EP 2 (2 processes)",
        ),
    ],
    ids=["zero1-recompute-capacity", "zbv-mtp2", "forced-routing"],
)
def test_a_composition_is_proved(verified: Verified, overrides: tuple[str, ...], only: str) -> None:
    verdict = verified(*overrides, only=(only,))
    assert verdict.exit_code == 0, "\n".join(verdict.lines())
    assert len(verdict.rows) == 2
