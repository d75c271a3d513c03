"""Reports of failed ranks: written by the rank that fails, read by whoever tells the user. Importable without torch."""

from __future__ import annotations

import json
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from moeframe.errors import MoeframeError
from moeframe.trace import Place

__all__ = ["Failure", "read_failures", "write_failure"]

_SECONDHAND = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "ncclRemoteError", "Timed out waiting")
"""What a rank says when another one has gone: never the root cause when there is any other report."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a rank ended. `time` is seconds since the epoch; `exit_code` what the rank ends with."""

    rank: int
    step: int
    place: str
    error: str
    traceback: str
    time: float
    exit_code: int

    @property
    def secondhand(self) -> bool:
        """Whether the error only says that another rank has gone."""
        return any(text in self.error for text in _SECONDHAND)

    def __str__(self) -> str:
        """Return rank, place and error in one line."""
        return f"rank {self.rank} failed at {self.place}: {self.error}"


def write_failure(path: Path, error: BaseException, *, rank: int, place: Place) -> Failure:
    """Write the report of this rank and return it."""
    text = str(error) if isinstance(error, MoeframeError) else f"{type(error).__name__}: {error}"
    failure = Failure(
        rank=rank,
        step=place.step,
        place=str(place),
        error=text,
        traceback="".join(traceback.format_exception(error)),
        time=time.time(),
        exit_code=error.exit_code if isinstance(error, MoeframeError) else 1,
    )
    part = path.with_suffix(".part")
    part.write_text(json.dumps(asdict(failure), indent=2) + "\n", encoding="utf-8")
    part.replace(path)
    return failure


def read_failures(log_dir: Path) -> list[Failure]:
    """Return the reports of a run, root cause first: first-hand errors before second-hand ones, then by time."""
    failures = [
        Failure(**json.loads(path.read_text(encoding="utf-8"))) for path in log_dir.glob("failure-rank-*.json")
    ]
    return sorted(failures, key=lambda failure: (failure.secondhand, failure.time, failure.rank))
