"""What a rank does with an error that is no Exception."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moeframe.train import worker
from moeframe.train.failure import read_failures
from moeframe.watch.beacon import beacon_file
from moeframe.watch.view import read_view


@pytest.fixture
def own_logging() -> Iterator[None]:
    """A rank logs to its run directory; afterwards the root logger is as it was."""
    root = logging.getLogger()
    level, before = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()


class Odd(BaseException):
    """As a library may define it."""


@pytest.mark.usefixtures("own_logging")
@pytest.mark.parametrize(("error", "text"), [(SystemExit(0), "SystemExit: 0"), (Odd("no"), "Odd: no")])
def test_a_rank_that_leaves_by_any_error_reports_it_and_ends_badly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, text: str
) -> None:
    def leave(*_: Any) -> None:
        raise error

    monkeypatch.setattr(worker, "_train", leave)
    (tmp_path / "log").mkdir()
    assert worker.main([str(tmp_path), "0"]) == 1
    assert [failure.error for failure in read_failures(tmp_path / "log")] == [text]
    assert text in (tmp_path / "log" / "rank-0.log").read_text()
    assert read_view(beacon_file(tmp_path, 0), now=0.0).state == "failed"
