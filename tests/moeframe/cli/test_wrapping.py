"""Long lines are for people: a terminal gets them between its margins, everything else as they are."""

from __future__ import annotations

import io

import pytest

from moeframe.cli.wrapping import for_reader


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


ROW = "  sharding    fsdp2: Parameters, gradients and optimizer state sharded over the data ranks"
PROBLEM = "  r.yaml:3:5: parallel.ep: given 2; dispatcher 'local' works between at most 1 rank. Use parallel.ep=1."


def test_a_row_goes_on_under_its_text() -> None:
    assert for_reader(ROW, Terminal()).splitlines() == [
        "  sharding    fsdp2: Parameters, gradients and optimizer",
        "              state sharded over the data ranks",
    ]


def test_a_problem_goes_on_further_in() -> None:
    lines = for_reader(f"error: 2 problems\n{PROBLEM}", Terminal()).splitlines()
    assert lines[0] == "error: 2 problems"
    assert lines[1].startswith("  r.yaml:3:5: parallel.ep:")
    assert all(line.startswith("    ") for line in lines[2:])
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(line.strip() for line in lines[1:]) == PROBLEM.strip()


def test_what_is_no_terminal_gets_every_line_whole() -> None:
    assert for_reader(f"{ROW}\n{PROBLEM}", io.StringIO()) == f"{ROW}\n{PROBLEM}"


def test_a_path_longer_than_a_line_is_not_broken() -> None:
    path = "a/" * 40 + "recipe.yaml:1:1:"
    assert path in for_reader(f"  {path} train.steps: given 0", Terminal())
