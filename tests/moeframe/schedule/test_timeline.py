"""Pictures of plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moeframe.schedule.actions import Action, Plan
from moeframe.schedule.simulate import simulate
from moeframe.schedule.timeline import draw_timeline, text_timeline

PLAN = Plan(
    num_stages=2,
    num_micro_batches=1,
    ranks=(
        (Action("forward", 0, 0), Action("backward", 0, 0)),
        (Action("forward", 1, 0), Action("backward_input", 1, 0), Action("backward_weight", 1, 0)),
    ),
)


def test_the_text_has_a_line_a_rank_and_a_column_a_unit_of_time() -> None:
    assert text_timeline(simulate(PLAN)).splitlines() == [
        "rank 0  F0 .. .. B0 --",
        "rank 1  .. F0 I0 W0 ..",
    ]


def test_stages_are_named_when_a_rank_has_several() -> None:
    together = replace(PLAN, ranks=((*PLAN.ranks[0][:1], *PLAN.ranks[1], *PLAN.ranks[0][1:]),))
    assert text_timeline(simulate(together)) == "rank 0  0F0 1F0 1I0 1W0 0B0 ---"


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "plan.png"
    draw_timeline(simulate(PLAN), path, title="two ranks")
    assert path.read_bytes().startswith(b"\x89PNG")
