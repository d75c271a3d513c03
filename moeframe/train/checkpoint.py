"""Checkpoints: written in the background through torch.distributed.checkpoint, whole only with their COMPLETE file.

A directory `step-<n>` holds torch's own shards and `.metadata` (which is a pickle of torch's planner classes, written
and read by torch), `job.json` (ours, plain JSON) and, once everything is on disk, `COMPLETE`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import async_save

from moeframe.checkpoint_names import recipe_section
from moeframe.errors import JobFailedError, UserInputError
from moeframe.train.load_state import load_state
from moeframe.train.random_state import get_random_state, set_random_state
from moeframe.train.saved import (
    COMPLETE,
    FORMAT,
    FREE_IN_MODEL,
    complete_steps,
    read_description,
    step_directory,
    still_whole,
    way_out,
)

if TYPE_CHECKING:
    from moeframe.train.assemble import Job

__all__ = ["Checkpoints"]


class Checkpoints:
    """Saves and loads the state of a job.

    Args:
        directory: the run's `checkpoints/`; made when the first one is saved.
        job: whose state it is.
        keep: how many whole checkpoints stay.
    """

    def __init__(self, directory: Path, job: Job, *, keep: int) -> None:
        self._directory = directory
        self._job = job
        self._keep = keep
        self._pending: tuple[int, Future[Any]] | None = None
        self._last_step = 0
        # The background save has collectives of its own, which must not meet those of the next step.
        self._group = dist.new_group(backend="gloo") if dist.is_initialized() else None

    def failed(self) -> bool:
        """Say whether the save in the background has failed already; `wait` raises why."""
        return self._pending is not None and self._pending[1].done() and self._pending[1].exception() is not None

    def save(self, step: int) -> None:
        """Copy the state after `step` optimizer steps and write it in the background; waits for the save before.

        Collective.

        Raises:
            JobFailedError: the save before, or copying this one, failed.
        """
        self.wait()
        if step == self._last_step:  # the periodic save of the last step is the final one too
            return
        path = step_directory(self._directory, step)
        with _explained(f"checkpoint of step {step}", path, still_whole(self._directory)):
            future = async_save(
                {**self._model_state(), **self._own_random_state()},
                checkpoint_id=path,
                process_group=self._group,
            )
        assert isinstance(future, Future)
        self._last_step = step
        self._pending = (step, self._finishing(step, future) if self._job.world.rank == 0 else future)

    def wait(self) -> None:
        """Wait until no save is under way. Collective.

        Raises:
            JobFailedError: it failed; what it left behind is no whole checkpoint and is removed.
        """
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        path = step_directory(self._directory, step)
        try:
            with _explained(f"checkpoint of step {step}", path, still_whole(self._directory)):
                future.result()
        except JobFailedError:
            if self._job.world.rank == 0:
                shutil.rmtree(path, ignore_errors=True)
            raise

    def load(self, step: int) -> None:
        """Restore the state after `step` optimizer steps, from any layout. Collective.

        Raises:
            UserInputError: the checkpoint is of another model or format.
            JobFailedError: a file is missing or broken; every rank raises it, naming the rank, the file and the way
                out.
        """
        path = step_directory(self._directory, step)
        description = read_description(self._directory, step)
        self._require_same_model(path, description)
        state = self._model_state()
        if description["world_size"] == self._job.world.world_size:
            state |= self._own_random_state()
        with _explained(f"checkpoint of step {step}", path, way_out(self._directory, step)):
            load_state(state, path, self._group)
        self._job.sharded.load_state_dict(state["model"])
        self._job.sharded.load_optimizer_state_dict(self._job.optimizer, state["optimizer"])
        if "random" in state:
            set_random_state(state["random"][f"rank-{self._job.world.rank}"], self._job.meshes.device)

    def _model_state(self) -> dict[str, Any]:
        sharded = self._job.sharded
        return {"model": sharded.state_dict(), "optimizer": sharded.optimizer_state_dict(self._job.optimizer)}

    def _own_random_state(self) -> dict[str, Any]:
        return {"random": {f"rank-{self._job.world.rank}": get_random_state(self._job.meshes.device)}}

    def _finishing(self, step: int, written: Future[Any]) -> Future[None]:
        """Return a future that is done when the checkpoint is marked whole as well, on the thread that wrote it."""
        finished: Future[None] = Future()

        def finish(done: Future[Any]) -> None:
            try:
                done.result()
                self._finish(step)
            except BaseException as error:  # noqa: BLE001  kept for whoever waits
                finished.set_exception(error)
            else:
                finished.set_result(None)

        written.add_done_callback(finish)
        return finished

    def _finish(self, step: int) -> None:
        """Mark a checkpoint whole and drop old ones; runs on rank 0 when all ranks have written."""
        path = step_directory(self._directory, step)
        description = {
            "format": FORMAT,
            "step": step,
            "world_size": self._job.world.world_size,
            "seed": self._job.recipe.train.seed,
            "model": asdict(self._job.recipe.model),
        }
        _write_durably(path / "job.json", json.dumps(description, indent=2) + "\n")
        _write_durably(path / COMPLETE, "")
        for old in complete_steps(self._directory)[: -self._keep]:
            stale = step_directory(self._directory, old)
            (stale / COMPLETE).unlink()  # first, so that what is being deleted never looks whole
            shutil.rmtree(stale)

    def _require_same_model(self, path: Path, description: dict[str, Any]) -> None:
        mine = self._job.recipe.model
        saved = recipe_section("model", description["model"], path)
        # A key that is younger than the checkpoint had its default there.
        theirs = {spec.name: spec.default for spec in fields(mine)} | saved
        different = [
            f"model.{key}: {theirs[key]!r} there, {value!r} in the recipe"
            for key, value in asdict(mine).items()
            if key not in FREE_IN_MODEL and theirs[key] != json.loads(json.dumps(value))
        ]
        if different:
            raise UserInputError(
                f"{path} is a checkpoint of another model: {'; '.join(different)}. "
                f"Resume with the recipe of that run, or start a new run."
            )


@contextmanager
def _explained(what: str, path: Path, then: str) -> Iterator[None]:
    """Turn torch's report of failed ranks, which is no Exception, into one error: each first cause, and the way out."""
    try:
        yield
    except CheckpointException as error:
        causes = "; ".join(f"rank {rank}: {_cause(failure)}" for rank, failure in sorted(error.failures.items()))
        raise JobFailedError(f"{what} at {path} failed on {causes}. {then}") from error
    except OSError as error:
        raise JobFailedError(f"{what} at {path} failed: {error}. {then}") from error


def _cause(failure: Any) -> str:
    error = failure[0] if isinstance(failure, tuple) else failure
    text = f"{type(error).__name__}: {error}"
    # torch's writer of archives says so when the system takes less than it was given.
    return f"{text} (full disk, quota or limit on file size?)" if "unexpected pos" in text else text


def _write_durably(path: Path, text: str) -> None:
    """Write a small file so that it is whole or absent after a power cut."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
