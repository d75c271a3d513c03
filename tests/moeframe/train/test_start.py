"""The launching process: what the watchdog cannot write does not end it with a traceback."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeframe.config.load import load_recipe
from moeframe.launch.local import Outcome
from moeframe.train import start
from moeframe.train.run_directory import RunDirectory

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"


@pytest.mark.parametrize(("unwritable", "first_failed"), [("close", None), ("conclude", 0)])
def test_a_job_whose_verdict_cannot_be_written_or_put_away_is_reported_all_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    unwritable: str,
    first_failed: int | None,
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    calls: dict[str, Any] = {"conclude": lambda ended_by: None, "close": lambda: None, unwritable: full}
    watch = SimpleNamespace(poll=lambda: False, every_s=1.0, **calls)
    outcome = Outcome(codes=(0 if first_failed is None else -9,), first_failed=first_failed, received=0)
    monkeypatch.setattr(start, "monitor", lambda *_, **__: watch)
    monkeypatch.setattr(start, "run_local", lambda *_, **__: outcome)
    recipe = load_recipe(RECIPE).recipe
    assert start._watched(["true"], recipe, RunDirectory(tmp_path), ()) is outcome
    assert "cannot be written to" in capsys.readouterr().err
