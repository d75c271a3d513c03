"""What a measurement says in words and as a picture; the one that docs/overlap.md shows."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from moeframe.bench.picture import build_figure, draw
from moeframe.bench.report import lines

MEASURED = Path(__file__).parents[3] / "docs" / "overlap.json"


@pytest.fixture
def data() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return found


def test_the_report_compares_with_the_first_schedule(data: dict[str, Any]) -> None:
    plain, own, _ = data["passes"][0]["schedules"]
    plain |= {"step_ms": 1000.0, "peak_bytes": 2 * 2**30}
    own |= {"step_ms": 900.0, "peak_bytes": 2**30}
    text = [*lines(data)]
    (row,) = [line for line in text if line.startswith("overlap_1f1b ") and "900.0" in line]
    assert "(-10.0%)" in row
    assert "(-1.00)" in row
    assert f"{own['communication']['paired_share']:.1%}" in row
    assert max(map(len, text)) <= 120


def test_slowed_exchanges_are_called_so(data: dict[str, Any]) -> None:
    assert [one["slow_us"] for one in data["passes"]] == [0.0, 1500.0]
    assert sum(line.startswith("SLOWED: ") and "1500 us longer" in line for line in lines(data)) == 1
    natural = data | {"passes": data["passes"][:1]}
    assert not any("SLOWED" in line for line in lines(natural))


def test_the_picture_has_a_panel_for_each_profiled_schedule_and_a_row_for_each_stream(data: dict[str, Any]) -> None:
    figure = build_figure(data)
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes]
    assert len(titles) == 3
    assert titles[0].startswith("accumulate: ")
    assert "slowed by 1500 us" in titles[2]
    rows = [[label.get_text() for label in ax.get_yticklabels()] for ax in figure.axes]
    assert rows == [["all"], ["compute", "communication"], ["compute", "communication"]]


def test_the_picture_is_a_file_of_the_format_that_its_name_says(data: dict[str, Any], tmp_path: Path) -> None:
    few = copy.deepcopy(data)
    few["passes"] = few["passes"][:1]
    for ending, head in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        draw(few, tmp_path / f"overlap.{ending}")
        assert (tmp_path / f"overlap.{ending}").read_bytes().startswith(head)
