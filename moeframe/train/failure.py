"""Reports of failed ranks: written by the rank that fails, read by whoever tells the user. Importable without torch."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from moeframe.errors import MoeframeError
from moeframe.trace import Direction, Phase, Place, told

__all__ = ["Failure", "failure_file", "read_failures", "root_cause", "watching_the_others", "write_failure"]

_LOG = logging.getLogger(__name__)

_SECONDHAND = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Remote process",
    "remote process",
    "Application timeout caused pair closure",
    "NCCL communicator was aborted",
    "ncclRemoteError",
    "Watchdog caught collective operation timeout",
)
"""What a rank says when another one has gone: never the root cause when there is any other report."""

_WAIT_FOR_ROOT_S = 3.0
"""How long a rank that lost a peer waits for that peer's own report."""

_POLL_S = 0.25

_CHAIN = 20
"""Causes that are kept of an error."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rank ended. `time` is seconds since the epoch; `exit_code` what the rank ends with.

    `causes` are the texts of the errors that it was raised from: pipelines wrap what a stage raises.
    """

    rank: int
    step: int
    place: str
    error: str
    traceback: str
    time: float
    exit_code: int
    micro_batch: int = -1
    layer: int = -1
    phase: Phase = ""
    direction: Direction = "forward"
    causes: Sequence[str] = ()

    @property
    def secondhand(self) -> bool:
        """Whether the error only says that another rank has gone."""
        return any(text in error for text in _SECONDHAND for error in (self.error, *self.causes))

    def __str__(self) -> str:
        """Return rank, place and error in one line."""
        return f"rank {self.rank} failed {told('at', self.place)}: {self.error}"

    @property
    def full(self) -> str:
        """The traceback, then the line; no traceback for refused input, which helps nobody there."""
        return str(self) if self.exit_code == 2 else f"{self.traceback.rstrip()}\n{self}"


def failure_file(log_dir: Path, rank: int) -> Path:
    """Return where a rank says why it failed."""
    return log_dir / f"failure-rank-{rank}.json"


def write_failure(log_dir: Path, error: BaseException, *, rank: int, place: Place) -> Failure:
    """Write the report of this rank and return it; what cannot be written goes to stderr."""
    text = str(error) if isinstance(error, MoeframeError) else f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank,
        step=place.step,
        place=str(place),
        error=text,
        traceback="".join(traceback.format_exception(error)),
        time=time.time(),
        exit_code=error.exit_code if isinstance(error, MoeframeError) else 1,
        micro_batch=place.micro_batch,
        layer=place.layer,
        phase=place.phase,
        direction=place.direction,
        causes=_causes(error),
    )
    path = failure_file(log_dir, rank)
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(asdict(failure), indent=2) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError as unwritable:  # the disk that is full may be why it failed
        with suppress(OSError):
            part.unlink(missing_ok=True)
        sys.stderr.write(f"{failure.full}\nthis report cannot be written to {path}: {unwritable.strerror}\n")
    return failure


def _causes(error: BaseException) -> list[str]:
    found: list[str] = []
    cause = error.__cause__ or error.__context__
    while cause is not None and len(found) < _CHAIN:
        found.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    return found


def read_failures(log_dir: Path, problems: list[str] | None = None) -> list[Failure]:
    """Return the reports of a run, root cause first: first-hand errors before second-hand ones, then by time.

    One that cannot be read is left out, with a line in `problems`: it must not hide the others.
    """
    failures = []
    for path in sorted(log_dir.glob("failure-rank-*.json")):
        try:
            failures.append(Failure(**json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError) as error:  # no file, half written, or of another version
            if problems is not None:
                problems.append(f"{path}: a failure report cannot be read ({error})")
    return sorted(failures, key=lambda failure: (failure.secondhand, failure.time, failure.rank))


def root_cause(log_dir: Path, own: Failure) -> Failure:
    """Return the report of the rank that failed first; waits a little when this rank only lost a peer."""
    until = time.monotonic() + (_WAIT_FOR_ROOT_S if own.secondhand else 0.0)
    while True:
        first = next(iter(read_failures(log_dir)), own)
        if not first.secondhand or time.monotonic() > until:
            return first
        time.sleep(_POLL_S)


@contextmanager
def watching_the_others(log_dir: Path, rank: int, ending: Callable[[], None] | None = None) -> Iterator[None]:
    """End this process soon after another rank has reported a failure of its own; `ending` is called just before.

    A rank that waits inside a collective runs no Python signal handler, and some backends never notice that a peer is
    gone. This thread does: it gives the main thread a few seconds to fail by itself, says why and ends the process.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            others = [failure for failure in read_failures(log_dir) if failure.rank != rank and not failure.secondhand]
            if others and not over.wait(_WAIT_FOR_ROOT_S):
                message = f"rank {rank} ends because another rank has failed.\n{others[0].full}"
                _LOG.error("%s", message)
                sys.stderr.write(f"error: {message}\n")
                sys.stderr.flush()
                if ending is not None:
                    ending()
                os._exit(others[0].exit_code)

    thread = threading.Thread(target=watch, name="moeframe-failure-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
