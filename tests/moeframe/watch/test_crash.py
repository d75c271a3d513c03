"""What the fault handler leaves behind is read: how a process crashed, where, and in which collective."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moeframe.watch.crash import Crash, crash_text, read_crash

GLOO = """earlier stacks, on request
Thread 0x00007f0000000001 (most recent call first):
  File "/a/trainer.py", line 7 in step
Fatal Python error: Aborted

Thread 0x00007f0000000002 (most recent call first):
  File "/lib/threading.py", line 331 in wait
  File "/lib/threading.py", line 1002 in _bootstrap

Thread 0x00007f0000000001 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 5140 in all_to_all_single
  File "/lib/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/a/alltoall.py", line 90 in dispatch
  File "/a/layer.py", line 12 in forward

Extension modules: numpy (total: 1)
"""


def test_a_crash_inside_of_a_collective_names_it_and_its_caller(tmp_path: Path) -> None:
    file = tmp_path / "rank-1.stack"
    file.write_text(GLOO)
    collective = "all_to_all_single, called by dispatch (/a/alltoall.py, line 90)"
    assert read_crash(file) == Crash(signal="SIGABRT", where="", collective=collective)
    assert "on request" not in crash_text(file)


def test_a_crash_of_a_thread_is_no_matter_of_the_collective_that_another_is_in(tmp_path: Path) -> None:
    file = tmp_path / "rank-1.stack"
    crashed = (
        'Current thread 0x00007f0000000003 (most recent call first):\n  File "/a/plugin.py", line 5 in dispatch\n\n'
    )
    file.write_text(GLOO.replace("Aborted\n\n", f"Aborted\n\n{crashed}"))
    assert read_crash(file) == Crash(signal="SIGABRT", where="dispatch (/a/plugin.py, line 5)", collective="")


def test_of_several_collectives_that_of_the_oldest_thread_counts(tmp_path: Path) -> None:
    file = tmp_path / "rank-1.stack"
    saving = """Thread 0x00007f0000000004 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 3 in broadcast
  File "/lib/concurrent/futures/thread.py", line 58 in run

"""
    file.write_text(GLOO.replace("Aborted\n\n", f"Aborted\n\n{saving}"))
    assert read_crash(file).collective.startswith("all_to_all_single, called by dispatch")


@pytest.mark.parametrize(
    ("call", "signal"),
    [("os.abort()", "SIGABRT"), ("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV")],
)
def test_a_real_crash_names_signal_and_line(tmp_path: Path, call: str, signal: str) -> None:
    file = tmp_path / "rank-0.stack"
    program = (
        f"import faulthandler, os, signal\nfaulthandler.enable(open({str(file)!r}, 'w'))\ndef f():\n    {call}\nf()"
    )
    subprocess.run([sys.executable, "-c", program], check=False)
    assert read_crash(file) == Crash(signal=signal, where="f (<string>, line 4)", collective="")


def test_stacks_on_request_are_no_crash(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.stack"
    assert read_crash(file) is None
    file.write_text(GLOO.partition("Fatal")[0])
    assert read_crash(file) is None
