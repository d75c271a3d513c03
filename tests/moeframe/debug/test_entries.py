"""What ranks write down of a collective, and when they disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeframe.debug.entries import Entry, Site, disagreement


def entry(rank, *, line="job.py:1 in step", place="step 1", unit="", **changes):
    site = Site(line=line, unit=unit, place=place)
    made = Entry(
        rank=rank,
        sequence=4,
        group="ep",
        op="all_to_all",
        operands=("float32 x 8 a row",),
        shapes=("float32 [3, 8]",),
        site=site,
    )
    return replace(made, **changes)


def test_equal_entries_agree() -> None:
    assert disagreement([entry(0), entry(1), entry(2)]) is None


def test_an_entry_survives_the_store() -> None:
    original = entry(3, send=(1, 2), receive=(2, 1), unit="blocks.1.attend")
    assert Entry.from_json(original.to_json()) == original


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"op": "all_gather"}, "different operations"),
        ({"operands": ("int32 x 8 a row",), "shapes": ("int32 [3, 8]",)}, "different dtypes or numbers of elements"),
        ({"line": "job.py:2 in step"}, "different call sites"),
        ({"unit": "experts.1"}, "different modules"),
        ({"place": "step 2"}, "different places"),
    ],
)
def test_what_differs_is_named_with_both_sites(other, text) -> None:
    message = disagreement([entry(0), entry(1, **other)])
    assert message is not None
    assert text in message
    assert "collective 4 of group ep" in message
    assert message.count("\n  rank ") == 2


def test_shapes_may_differ_where_the_number_of_elements_agrees() -> None:
    assert disagreement([entry(0), entry(1, shapes=("float32 [8, 3]",))]) is None


def test_splits_are_compared_pair_by_pair_c04() -> None:
    message = disagreement([entry(0, send=(1, 2), receive=(1, 2)), entry(1, send=(3, 2), receive=(3, 2))])
    assert message is not None
    assert "rank 0 sends 2 rows to rank 1, rank 1 expects 3" in message
    assert "rank 1 sends 3 rows to rank 0, rank 0 expects 2" in message
    assert disagreement([entry(0, send=(1, 3), receive=(1, 3)), entry(1, send=(3, 2), receive=(3, 2))]) is None


def test_ranks_of_one_opinion_share_a_line() -> None:
    message = disagreement([entry(0), entry(1), entry(2, op="barrier")])
    assert message is not None
    assert "  ranks 0, 1: all_to_all" in message
    assert "  rank 2: barrier" in message
