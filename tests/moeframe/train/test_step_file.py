from __future__ import annotations

import json
from pathlib import Path

import pytest

from moeframe.errors import UserInputError
from moeframe.train.run_directory import RunDirectory
from moeframe.train.step_file import StepFile, read_last_step, read_steps


def write(path: Path, steps: range, *, keep_steps: int = 0, **more: object) -> None:
    file = StepFile(path, keep_steps=keep_steps)
    for step in steps:
        file.write({"step": step, **more})
    file.close()


def test_every_step_is_one_line_of_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 3), mfu=None)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "mfu": None},
        {"step": 2, "mfu": None},
    ]
    assert [line["step"] for line in read_steps(path)] == [1, 2]


def test_a_resumed_run_keeps_the_steps_before_its_checkpoint_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 6), attempt=1)
    write(path, range(4, 7), keep_steps=3, attempt=2)
    assert [(line["step"], line["attempt"]) for line in read_steps(path)] == [
        (1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)
    ]  # fmt: skip
    assert list(tmp_path.iterdir()) == [path]


def test_a_line_that_a_killed_process_left_half_written_counts_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, range(1, 3))
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    assert [line["step"] for line in read_steps(path)] == [1, 2]
    assert read_last_step(path) == {"step": 2}
    write(path, range(3, 4), keep_steps=2)
    assert [line["step"] for line in read_steps(path)] == [1, 2, 3]


def test_a_run_that_wrote_nothing_has_no_steps(tmp_path: Path) -> None:
    assert list(read_steps(tmp_path / "metrics.jsonl")) == []
    assert read_last_step(tmp_path / "metrics.jsonl") is None


@pytest.mark.parametrize("damage", ["{", "[1]", '{"loss": 1}', '{"step": null}'])
def test_a_damaged_line_is_named_and_nothing_is_lost(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "metrics.jsonl"
    text = f'{{"step": 1}}\n{damage}\n'
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserInputError, match=r"metrics\.jsonl:2: this line is no JSON object"):
        StepFile(path, keep_steps=1)
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_have_is_not_written(tmp_path: Path, number: float) -> None:
    file = StepFile(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.write({"step": 1, "loss": number})
    file.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""
    with pytest.raises(ValueError, match="not JSON compliant"):
        RunDirectory(tmp_path).write_json("summary.json", {"validation_loss": number})
    assert not (tmp_path / "summary.json").exists()
