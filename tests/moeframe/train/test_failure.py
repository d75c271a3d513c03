from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moeframe.errors import UserInputError
from moeframe.trace import Place
from moeframe.train.failure import failure_file, read_failures, root_cause, write_failure

PLACE = Place(step=3, layer=2, phase="dispatch")
LOST = RuntimeError("[gloo] Connection closed by peer [127.0.0.1]:1234")


def test_a_report_names_rank_place_and_error(tmp_path: Path) -> None:
    failure = write_failure(tmp_path, ValueError("bad batch"), rank=1, place=PLACE)
    assert str(failure) == "rank 1 failed at step 3, layer 2, dispatch (forward): ValueError: bad batch"
    assert (failure.exit_code, failure.secondhand) == (1, False)
    assert read_failures(tmp_path) == [failure]


def test_a_report_that_cannot_be_written_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    failure = write_failure(gone, OSError(28, "No space left on device"), rank=0, place=PLACE)
    err = capsys.readouterr().err
    assert "rank 0 failed at step 3, layer 2, dispatch (forward): OSError: [Errno 28] No space left on device" in err
    assert f"this report cannot be written to {failure_file(gone, 0)}" in err
    assert root_cause(gone, failure) == failure


def test_a_report_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    failure = write_failure(tmp_path, ValueError("bad batch"), rank=1, place=PLACE)
    failure_file(tmp_path, 0).mkdir()
    for rank, text in ((2, "[]"), (3, '{"rank": 3'), (4, '{"future": 1}')):
        failure_file(tmp_path, rank).write_text(text)
    problems: list[str] = []
    assert read_failures(tmp_path, problems) == [failure]
    assert [f"failure-rank-{rank}.json: " in line for rank, line in zip((0, 2, 3, 4), problems, strict=True)] == [
        True
    ] * 4


def test_refused_input_keeps_its_exit_code_and_shows_no_traceback(tmp_path: Path) -> None:
    failure = write_failure(tmp_path, UserInputError("too little data"), rank=0, place=Place())
    assert failure.exit_code == 2
    assert failure.full == "rank 0 failed before the first step: too little data"


def test_the_root_cause_is_first_hand_even_when_a_lost_peer_reported_earlier(tmp_path: Path) -> None:
    lost = write_failure(tmp_path, LOST, rank=0, place=PLACE)
    cause = write_failure(tmp_path, ValueError("bad batch"), rank=1, place=PLACE)
    assert lost.secondhand
    assert lost.time <= cause.time
    assert read_failures(tmp_path) == [cause, lost]
    assert root_cause(tmp_path, lost) == cause


def test_of_two_first_hand_errors_the_earlier_one_is_the_cause(tmp_path: Path) -> None:
    first = write_failure(tmp_path, ValueError("a"), rank=3, place=PLACE)
    second = write_failure(tmp_path, ValueError("b"), rank=1, place=PLACE)
    assert root_cause(tmp_path, second) == first


def test_a_lost_peer_that_left_no_report_is_all_there_is_to_say(tmp_path: Path) -> None:
    lost = write_failure(tmp_path, LOST, rank=0, place=PLACE)
    assert root_cause(tmp_path, lost) == lost


@pytest.mark.parametrize("waiting", ["time.sleep(60)", "import threading; threading.Event().wait()"])
def test_a_waiting_rank_ends_when_another_has_failed(tmp_path: Path, waiting: str) -> None:
    script = (
        "import time, sys\nfrom pathlib import Path\nfrom moeframe.train.failure import watching_the_others\n"
        f"with watching_the_others(Path({str(tmp_path)!r}), rank=0):\n    print('in', flush=True)\n    {waiting}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        write_failure(tmp_path, ValueError("bad batch"), rank=1, place=PLACE)
        _, error = process.communicate(timeout=30)
    assert process.returncode == 1
    assert error.splitlines()[-1] == "rank 1 failed at step 3, layer 2, dispatch (forward): ValueError: bad batch"


def test_reports_are_whole_or_absent(tmp_path: Path) -> None:
    write_failure(tmp_path, ValueError("x"), rank=0, place=PLACE)
    assert [path.name for path in tmp_path.iterdir()] == [failure_file(tmp_path, 0).name]
    json.loads(failure_file(tmp_path, 0).read_text())


def test_a_lost_peer_is_recognized_where_a_pipeline_wraps_what_a_stage_raised(tmp_path: Path) -> None:
    error = RuntimeError("Failed to run stage backward input")
    error.__cause__ = LOST
    wrapped = write_failure(tmp_path, error, rank=0, place=PLACE)
    assert wrapped.secondhand
    assert read_failures(tmp_path) == [wrapped]
