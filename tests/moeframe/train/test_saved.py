"""Which checkpoints are whole, and what a broken one says."""

from __future__ import annotations

import json
import shlex

import pytest

from moeframe.errors import JobFailedError, UserInputError
from moeframe.train.saved import COMPLETE, complete_steps, go_on, read_description, still_whole

GOOD = {"format": 1, "step": 4, "world_size": 2, "seed": 0, "model": {"hidden_size": 8}}


@pytest.fixture
def checkpoints(tmp_path):
    """Whole checkpoints of steps 2 and 4, and half of one of step 6."""
    for step in (2, 4, 6):
        path = tmp_path / "checkpoints" / f"step-{step}"
        path.mkdir(parents=True)
        (path / "job.json").write_text(json.dumps(GOOD))
        (path / ".metadata").write_bytes(b"pickle")
        if step < 6:
            (path / COMPLETE).touch()
    return tmp_path / "checkpoints"


def test_half_a_checkpoint_does_not_count(checkpoints) -> None:
    assert complete_steps(checkpoints) == [2, 4]
    assert read_description(checkpoints, 4) == GOOD


@pytest.mark.parametrize(
    ("file", "content", "cause"),
    [
        ("job.json", None, "FileNotFoundError"),
        ("job.json", "{", "JSONDecodeError"),
        ("job.json", "[]", "TypeError"),
        ("job.json", '{"format": 1}', "KeyError: 'world_size'"),
        (".metadata", None, "FileNotFoundError"),
        (".metadata", "", r"ValueError: \.metadata is empty"),
    ],
)
def test_a_broken_one_names_the_older_one_and_the_way_out(checkpoints, file, content, cause) -> None:
    path = checkpoints / "step-4" / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(JobFailedError, match=cause) as caught:
        read_description(checkpoints, 4)
    assert str(caught.value).endswith(
        f"The checkpoint of step 2 is whole too: move {checkpoints / 'step-4'} away, and go on from step 2 with "
        f"`moeframe run {checkpoints.parent}/recipe.yaml --resume {checkpoints.parent}`."
    )
    (checkpoints / "step-2" / COMPLETE).unlink()
    with pytest.raises(
        JobFailedError, match=r"has no older checkpoint that is whole: start a new run with `moeframe run /"
    ):
        read_description(checkpoints, 4)


def test_each_way_on_is_a_command_that_a_shell_takes(tmp_path) -> None:
    run_dir = tmp_path / "my runs"
    whole = run_dir / "checkpoints" / "step-2" / COMPLETE
    whole.parent.mkdir(parents=True)
    (run_dir / "launch.json").write_text('{"plugins": ["mine"]}')
    start = ["moeframe", "run", "--plugin", "mine", str(run_dir / "recipe.yaml")]
    for told, command in ((go_on, start), (still_whole, start)):
        assert shlex.split(told(run_dir / "checkpoints").split("`")[1]) == command
    whole.touch()
    for told in (go_on, still_whole):
        assert shlex.split(told(run_dir / "checkpoints").split("`")[1]) == [*start, "--resume", str(run_dir)]


def test_another_format_is_refused(checkpoints) -> None:
    (checkpoints / "step-4" / "job.json").write_text(json.dumps(GOOD | {"format": 2}))
    with pytest.raises(UserInputError, match="has checkpoint format 2; this version reads format 1"):
        read_description(checkpoints, 4)
