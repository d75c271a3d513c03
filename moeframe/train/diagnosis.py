"""What a run directory says of its job: on any machine, while it lives or after. Importable without torch."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from moeframe.config.load import load_recipe
from moeframe.config.schema import WatchdogConfig
from moeframe.errors import MoeframeError, UserInputError
from moeframe.protocols.stall import Stall, StalledRank
from moeframe.train.resume import holder
from moeframe.train.run_directory import RunDirectory
from moeframe.train.saved import complete_steps, go_on
from moeframe.train.watchdog import limits_of, raised_in
from moeframe.watch.judge import judge, ranks_text
from moeframe.watch.monitor import Limits, known_views
from moeframe.watch.stall import StallDirectory, read_json
from moeframe.watch.table import report_lines, table_lines, verdict_text
from moeframe.watch.view import Raised, RankView, interrupted, read_views

__all__ = ["Diagnosis", "diagnose"]

_SIGN_OF_LIFE_S: Final = 30.0
"""A rank on another machine that has given no pulse for so long is taken for dead."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """`verdict` is None when nothing is wrong. `problems`: lines about files that cannot be read."""

    status: Literal["running", "finished", "wrong"]
    table: tuple[StalledRank, ...]
    verdict: dict[str, Any] | None
    lines: tuple[str, ...]
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "status": self.status,
            "verdict": self.verdict,
            "ranks": [asdict(row) for row in self.table],
            "problems": list(self.problems),
        }


def diagnose(path: Path) -> Diagnosis:
    """Say where the ranks of a run are, and what went wrong, if anything did.

    Raises:
        UserInputError: that is no run directory, or nothing in it can be read.
    """
    run_dir = RunDirectory(path)
    if not run_dir.recipe_file.is_file():
        raise UserInputError(
            f"{path} is no run directory: it has no recipe.yaml. Name one, such as runs/<recipe name>/<time>-<id>."
        )
    views, problems = read_views(path, now=time.time())
    recorded = _recorded(path, problems)
    raised = raised_in(run_dir.log_dir, problems)
    known = [_with_signs(view) for view in known_views(path, raised, {})]
    interrupted = None if recorded is not None else _interrupted(run_dir, known, raised)
    if interrupted is not None:
        return _diagnosis("finished", known, None, [interrupted], problems)
    launcher_end = _launcher_end(run_dir, known)
    if not views and recorded is None and not launcher_end:
        why = "; ".join(problems) or "no rank has started, or the run was made by moeframe 0.1"
        raise UserInputError(f"{path} holds no beacon that can be read: {why}.")
    limits, trouble = _limits(run_dir)
    problems += trouble
    if recorded is not None:
        return _diagnosis("wrong", known, recorded, _recorded_lines(path, recorded, problems), problems)
    world_size = max((view.world_size for view in known), default=0) or _world_size(run_dir)
    if known and all(view.state == "finished" for view in known) and len(known) == world_size:
        return _diagnosis("finished", known, None, [_ended(run_dir)], problems)
    if not known or _is_wrong(known, limits, world_size):
        stall: Stall = judge(
            known,
            world_size=world_size,
            began=run_dir.recipe_file.stat().st_mtime,
            go_on=go_on(run_dir.checkpoints),
            launcher_end=launcher_end,
        )
        return _diagnosis("wrong", known, stall.as_json(), report_lines(stall), problems)
    table = [view.row() for view in known]
    unseen = sorted(set(range(world_size)) - {view.rank for view in known})
    words = f"no beacon of {ranks_text(unseen)} can be read; the others move" if unseen else "every rank moves"
    return _diagnosis("running", known, None, [*table_lines(table, shown=64), words], problems)


def _launcher_end(run_dir: RunDirectory, views: Sequence[RankView]) -> str:
    """Return how the process has ended that started the ranks, "" where it has not, or ended as it should.

    Of another machine only its silence is known, and that of its ranks.
    """
    found = holder(run_dir)
    if found is None or not found.launches:
        return ""
    ends = {"dead": "was killed or has crashed", "unknown": "or its machine has gone" if views else ""}
    end = ends.get(found.health, "")
    return f"`moeframe run` ({found}) {end}" if end else ""


def _world_size(run_dir: RunDirectory) -> int:
    launch = load_recipe(run_dir.recipe_file).recipe.launch
    return launch.nnodes * launch.nproc_per_node


def _ended(run_dir: RunDirectory) -> str:
    """Return how a run ended of which every rank has: after its last step, or early, by a signal."""
    summary = read_json(run_dir.path / "summary.json")
    stopped_by = summary.get("stopped_by") if isinstance(summary, dict) else 0
    if not stopped_by:
        return "finished"
    try:
        total = f" of {load_recipe(run_dir.recipe_file).recipe.train.steps}"
    except MoeframeError:  # a note tells
        total = ""
    return f"stopped by {_signal(stopped_by)} after {summary.get('steps_done')}{total} steps; {_way_on(run_dir)}"


def _interrupted(run_dir: RunDirectory, views: Sequence[RankView], raised: Sequence[Raised]) -> str | None:
    """Return how a run ended that a signal from outside ended before a step boundary; None if none did."""
    ended = read_json(run_dir.ended_file)
    number = ended.get("stopped_by") if isinstance(ended, dict) else None
    if number is None and interrupted(raised):
        number = signal.SIGINT.value
    if number is None or any(view.state in ("running", "stopped") for view in views):
        return None
    summary = read_json(run_dir.path / "summary.json")
    if isinstance(summary, dict) and not summary.get("stopped_by"):
        return f"ended by {_signal(number)} after the last step: nothing is left to do"
    step = max((view.moment.place.step for view in views), default=-1)
    where = f"in step {step}" if step >= 0 else "before the first step"
    return f"ended by {_signal(number)} {where}; {_way_on(run_dir)}"


def _signal(number: int) -> str:
    names = {known.value: known.name for known in signal.Signals}
    return names.get(number, f"signal {number}")


def _way_on(run_dir: RunDirectory) -> str:
    if complete_steps(run_dir.checkpoints):
        return f"go on with {run_dir.resume_command}"
    return f"no checkpoint is whole: start anew with {run_dir.start_command}"


def _diagnosis(
    status: Literal["running", "finished", "wrong"],
    views: Sequence[RankView],
    verdict: dict[str, Any] | None,
    lines: Sequence[str],
    problems: Sequence[str],
) -> Diagnosis:
    return Diagnosis(
        status=status,
        table=tuple(view.row() for view in views),
        verdict=verdict,
        lines=tuple(lines),
        problems=tuple(problems),
    )


def _limits(run_dir: RunDirectory) -> tuple[Limits, list[str]]:
    try:
        return limits_of(load_recipe(run_dir.recipe_file).recipe.watchdog), []
    except MoeframeError as error:
        return limits_of(WatchdogConfig()), [f"the limits are the defaults, since the recipe cannot be read: {error}"]


def _recorded(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Return the verdict that a watchdog has written, None if there is none that can be read."""
    stall = StallDirectory(run_dir=path)
    if not stall.judged:
        return None
    verdict = stall.verdict()
    if verdict is not None:
        return verdict
    problems.append(f"{stall.verdict_file} is half written, or of another version of moeframe")
    return None


def _recorded_lines(path: Path, verdict: dict[str, Any], problems: list[str]) -> list[str]:
    """Return what the watchdog told people."""
    table = StallDirectory(run_dir=path).path / "table.txt"
    try:
        return table.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{table} cannot be read ({error})")
        return [f"verdict: {verdict_text(verdict)}"]


def _with_signs(view: RankView) -> RankView:
    silent_s = time.time() - view.alive_at
    if view.state != "unknown" or silent_s < _SIGN_OF_LIFE_S:
        return view
    return replace(view, state="dead", ended_by=f"has given no sign of life for {silent_s:.0f} s")


def _is_wrong(views: Sequence[RankView], limits: Limits, world_size: int) -> bool:
    limit = limits.of(views, world_size=world_size)
    return any(
        view.state in ("dead", "failed", "stopped") or (view.state != "finished" and view.still_s > limit)
        for view in views
    )
