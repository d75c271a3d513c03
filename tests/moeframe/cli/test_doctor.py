"""`moeframe doctor` on run directories of every condition."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from moeframe.cli.app import app
from moeframe.cli.doctor import doctor
from moeframe.config.load import load_recipe
from moeframe.errors import UserInputError
from moeframe.trace import Place
from moeframe.train.failure import write_failure
from moeframe.train.resume import locked
from moeframe.train.run_directory import RunDirectory
from moeframe.train.saved import COMPLETE
from moeframe.watch.beacon import Beacon, beacon_file

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    shutil.copy(RECIPE, tmp_path / "recipe.yaml")
    text = (tmp_path / "recipe.yaml").read_text()
    base = (RECIPE.parent / "tiny.yaml").read_text()
    assert text == base
    (tmp_path / "log").mkdir()
    return tmp_path


def beacon(run_dir: Path, rank: int = 0, world_size: int = 1) -> Beacon:
    made = Beacon(beacon_file(run_dir, rank), {"rank": rank, "world_size": world_size})
    for step in (1, 2):
        made.enter(Place(step=step, phase="data"))
    return made


def said(capsys) -> str:
    return capsys.readouterr().out


def anew(run_dir: Path) -> str:
    return f"no checkpoint is whole: start anew with `moeframe run {run_dir}/recipe.yaml`"


def test_a_job_that_moves_is_well(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    assert doctor(run_dir) == 0
    text = said(capsys)
    assert "step 2, data (forward)" in text
    assert text.endswith("every rank moves\n")


def test_a_job_that_ended_well_is_well_and_follow_ends_with_it(run_dir: Path, capsys) -> None:
    beacon(run_dir).end(failed=False)
    assert doctor(run_dir, follow=True) == 0
    assert said(capsys) == "finished\n"


def test_a_dead_run_without_a_verdict_gets_one(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    data = bytearray(beacon_file(run_dir, 0).read_bytes())
    beacon_file(run_dir, 0).write_bytes(bytes(data))
    _pretend_dead(run_dir)
    assert doctor(run_dir, follow=True) == 1
    text = said(capsys)
    assert "verdict: rank_died: rank 0" in text
    assert "at step 2, data (forward)" in text
    assert "No checkpoint is whole: start anew" in text
    assert "--resume" not in text
    (run_dir / "checkpoints" / "step-1").mkdir(parents=True)
    (run_dir / "checkpoints" / "step-1" / COMPLETE).touch()
    assert doctor(run_dir) == 1
    assert f"Then go on from step 1 with `moeframe run {run_dir}/recipe.yaml --resume {run_dir}`." in said(capsys)


def test_a_launching_process_that_was_killed_is_named_before_its_ranks_have_started_and_after(
    run_dir: Path, capsys
) -> None:
    with locked(RunDirectory(run_dir), launches=True):
        held = json.loads((run_dir / "lock").read_text())
        beacon(run_dir)
        assert doctor(run_dir) == 0
        _pretend_dead(run_dir)
        assert doctor(run_dir) == 1
        assert "launcher_died" not in said(capsys)
    assert doctor(run_dir) == 1  # it has ended as it should
    assert "verdict: rank_died" in said(capsys)
    (run_dir / "lock").write_text(json.dumps(held | {"start_ticks": 1}))
    assert doctor(run_dir) == 1
    text = said(capsys)
    told = f"`moeframe run` (process {held['pid']} on {held['host']}) was killed or has crashed"
    assert (
        f"verdict: launcher_died: {told}, and the ranks were ended with it (rank 0 at step 2, data (forward))" in text
    )
    assert all(word not in text for word in ("SIGKILL", "gloo"))
    shutil.rmtree(run_dir / "beacons")
    assert doctor(run_dir) == 1
    assert f"verdict: launcher_died: {told} before rank 0 of 1 had started" in said(capsys)


def test_a_run_that_a_signal_ended_before_a_step_boundary_is_no_failure(run_dir: Path, capsys) -> None:
    (run_dir / "ended.json").write_text('{"stopped_by": 2}')
    assert doctor(run_dir) == 0
    assert said(capsys) == f"ended by SIGINT before the first step; {anew(run_dir)}\n"
    beacon(run_dir)
    assert doctor(run_dir) == 0
    assert "every rank moves" in said(capsys)
    _pretend_dead(run_dir)
    assert doctor(run_dir) == 0
    assert said(capsys).startswith("ended by SIGINT in step 2; ")
    (run_dir / "summary.json").write_text('{"steps_done": 2, "stopped_by": 0}')
    assert doctor(run_dir) == 0
    assert said(capsys) == "ended by SIGINT after the last step: nothing is left to do\n"
    (run_dir / "summary.json").unlink()
    (run_dir / "ended.json").unlink()
    write_failure(run_dir / "log", KeyboardInterrupt(), rank=0, place=Place(step=2))
    assert doctor(run_dir) == 0
    assert said(capsys).startswith("ended by SIGINT in step 2; ")
    write_failure(run_dir / "log", ValueError("no"), rank=0, place=Place(step=2))
    assert doctor(run_dir) == 1


def _pretend_dead(run_dir: Path) -> None:
    """Rewrite the header: another process had the beacon, which has gone."""
    from moeframe.watch.record import pack_header, read_header

    file = beacon_file(run_dir, 0)
    data = file.read_bytes()
    header = read_header(data) | {"start_ticks": 1}
    packed = pack_header(header)
    file.write_bytes(packed + data[len(packed) :])


def test_a_rank_of_another_machine_without_a_sign_of_life_is_dead(run_dir: Path, capsys) -> None:
    from moeframe.watch.record import pack_header, read_header

    beacon(run_dir)
    file = beacon_file(run_dir, 0)
    data = file.read_bytes()
    header = read_header(data) | {"host": "elsewhere", "machine": "elsewhere"}
    packed = pack_header(header)
    file.write_bytes(packed + data[len(packed) :])
    assert doctor(run_dir) == 0  # it has moved a moment ago
    said(capsys)
    packed = pack_header(header | {"wall": header["wall"] - 3600})
    file.write_bytes(packed + data[len(packed) :])
    assert doctor(run_dir) == 1
    assert "no sign of life" in said(capsys)


def test_the_verdict_of_the_watchdog_is_told_again(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    (run_dir / "stall").mkdir()
    (run_dir / "stall" / "table.txt").write_text("rank ...\nverdict: rank_stopped: rank 0\n")
    verdict = {"kind": "rank_stopped", "ranks": [0], "cause": "rank 0"}
    (run_dir / "stall" / "verdict.json").write_text(json.dumps(verdict))
    assert doctor(run_dir, as_json=True) == 1
    data = json.loads(said(capsys))
    assert (data["status"], data["verdict"]) == ("wrong", verdict)
    assert data["ranks"][0]["place"]["step"] == 2


@pytest.mark.parametrize("content", ['{"kind": "rank_st', '{"format": 2}', "[]"], ids=["half", "other", "list"])
def test_a_verdict_that_cannot_be_read_is_named_and_the_beacons_speak(run_dir: Path, capsys, content: str) -> None:
    beacon(run_dir)
    (run_dir / "stall").mkdir()
    (run_dir / "stall" / "verdict.json").write_text(content)
    assert doctor(run_dir) == 0
    assert "verdict.json is half written, or of another version" in said(capsys)


def test_a_failure_report_that_cannot_be_read_is_named(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    (run_dir / "log" / "failure-rank-0.json").write_text('{"rank": 0, "future": 1}')
    assert doctor(run_dir) == 0
    assert "a failure report cannot be read" in said(capsys)


def test_a_failure_report_that_is_a_directory_is_named(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    (run_dir / "log" / "failure-rank-0.json").mkdir()
    assert doctor(run_dir) == 0
    assert "failure-rank-0.json: a failure report cannot be read" in said(capsys)


def test_a_verdict_without_its_table_is_told_all_the_same(run_dir: Path, capsys) -> None:
    (run_dir / "stall").mkdir()  # no rank had started
    verdict = {"kind": "rank_absent", "ranks": [0], "cause": "rank 0 of 1 have not started"}
    (run_dir / "stall" / "verdict.json").write_text(json.dumps(verdict))
    assert doctor(run_dir) == 1
    text = said(capsys)
    assert text.startswith("verdict: rank_absent: rank 0 of 1 have not started\n")
    assert "table.txt cannot be read" in text


def test_a_rank_whose_beacon_is_that_of_another_is_not_said_to_move(run_dir: Path, capsys) -> None:
    beacon(run_dir, world_size=2)
    shutil.copy(beacon_file(run_dir, 0), beacon_file(run_dir, 1))
    assert doctor(run_dir) == 0
    text = said(capsys)
    assert "every rank moves" not in text
    assert "no beacon of rank 1 can be read" in text
    assert "rank-1: it is the beacon of rank 0" in text


def test_a_run_that_a_signal_ended_early_says_so_and_how_to_go_on(run_dir: Path, capsys) -> None:
    beacon(run_dir).end(failed=False)
    steps = load_recipe(run_dir / "recipe.yaml").recipe.train.steps
    (run_dir / "summary.json").write_text(json.dumps({"stopped_by": 2, "steps_done": 9}))
    assert doctor(run_dir) == 0
    assert said(capsys) == f"stopped by SIGINT after 9 of {steps} steps; {anew(run_dir)}\n"
    (run_dir / "checkpoints" / "step-9").mkdir(parents=True)
    (run_dir / "checkpoints" / "step-9" / COMPLETE).touch()
    assert doctor(run_dir) == 0
    way_on = f"`moeframe run {run_dir}/recipe.yaml --resume {run_dir}`"
    assert said(capsys) == f"stopped by SIGINT after 9 of {steps} steps; go on with {way_on}\n"
    (run_dir / "summary.json").write_text(json.dumps({"stopped_by": 0, "steps_done": steps}))
    assert doctor(run_dir) == 0
    assert said(capsys) == "finished\n"


def test_a_recipe_that_cannot_be_read_leaves_the_default_limits(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    (run_dir / "recipe.yaml").write_text("schema_version: 99\n")
    assert doctor(run_dir) == 0
    assert "the limits are the defaults" in said(capsys)


def test_a_beacon_that_is_half_written_is_named_beside_the_others(run_dir: Path, capsys) -> None:
    beacon(run_dir)
    beacon_file(run_dir, 1).write_bytes(b"moeframe")
    assert doctor(run_dir) == 0
    assert "rank-1: it is no beacon, or one that is still being made" in said(capsys)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, "no run directory: it has no recipe.yaml"),
        (lambda path: (path / "recipe.yaml").touch(), "no rank has started, or the run was made by moeframe 0.1"),
        (
            lambda path: ((path / "recipe.yaml").touch(), (path / "beacons").mkdir(), beacon_file(path, 0).touch()),
            "rank-0: it is no beacon",
        ),
    ],
    ids=["nothing", "no beacons", "no whole beacon"],
)
def test_what_cannot_be_read_is_refused_with_one_clear_line(tmp_path: Path, make, words: str) -> None:
    make(tmp_path)
    with pytest.raises(UserInputError, match=words) as caught:
        doctor(tmp_path)
    assert "\n" not in str(caught.value)


def test_the_command_ends_with_the_code_of_what_it_found(run_dir: Path) -> None:
    beacon(run_dir)
    assert CliRunner().invoke(app, ["doctor", str(run_dir)]).exit_code == 0
    _pretend_dead(run_dir)
    assert CliRunner().invoke(app, ["doctor", str(run_dir), "--json"]).exit_code == 1
    with contextlib.suppress(SystemExit):
        refused = CliRunner().invoke(app, ["doctor", str(run_dir / "nowhere")])
        assert isinstance(refused.exception, UserInputError)
        assert refused.exception.exit_code == 2
