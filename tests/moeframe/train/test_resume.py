"""Which run directory is opened, and who may hold it."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from moeframe.config.load import load_recipe
from moeframe.config.schema import Recipe
from moeframe.errors import JobFailedError, UserInputError
from moeframe.launch.environment import World
from moeframe.train.resume import LATEST, locked, open_run, prepare
from moeframe.train.run_directory import RunDirectory, cannot_write

TINY = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
ALONE = World(launcher="none", rank=0, world_size=1, local_rank=0, local_world_size=1)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return load_recipe(TINY, [f"train.output_dir={tmp_path}"]).recipe


def test_what_a_refused_start_left_behind_is_no_run(recipe: Recipe) -> None:
    opened = open_run(recipe, None, ALONE)
    opened.run_dir.recipe_file.touch()
    with pytest.raises(UserInputError, match=r"--resume latest: no run in .* has a whole checkpoint"):
        open_run(recipe, LATEST, ALONE)
    opened.run_dir.metrics_file.write_text("{}\n")
    open_run(recipe, None, ALONE).run_dir.recipe_file.touch()
    with pytest.raises(UserInputError, match=r"none of the 1 runs in .* has a whole checkpoint"):
        open_run(recipe, LATEST, ALONE)


def test_a_full_disk_fails_the_job_and_anything_else_is_refused_input() -> None:
    full = cannot_write("the run directory r cannot be made", OSError(errno.ENOSPC, "No space left on device"))
    assert isinstance(full, JobFailedError)
    assert str(full).startswith("the run directory r cannot be made (No space left on device). Make room")
    assert isinstance(cannot_write("x", OSError(errno.EROFS, "Read-only file system")), UserInputError)


def test_a_directory_that_cannot_be_written_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserInputError, match=r"cannot be made \(Not a directory\)"):
        open_run(replace(recipe, train=replace(recipe.train, output_dir=str(tmp_path / "file"))), None, ALONE)
    with (
        pytest.raises(UserInputError, match=r"cannot be written \(No such file or directory\)"),
        locked(RunDirectory(tmp_path / "gone")),
    ):
        pass


def test_a_directory_is_held_once(recipe: Recipe) -> None:
    run_dir = open_run(recipe, None, ALONE).run_dir
    with locked(run_dir), pytest.raises(UserInputError, match=r"another job is writing to .* \(process \d+ on "):
        locked(run_dir).__enter__()
    with locked(run_dir):
        pass


def test_a_recipe_that_cannot_be_written_leaves_that_of_the_start_before(
    recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = open_run(recipe, None, ALONE).run_dir
    prepare(run_dir, recipe, ["mine"])
    before = run_dir.recipe_file.read_text()
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        write(path, text[:10], **options)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(JobFailedError, match="No space left on device"):
        prepare(run_dir, recipe, [])
    assert run_dir.recipe_file.read_text() == before
    assert "--plugin mine" in run_dir.resume_command
