from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from moeframe.launch.local import run_local


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "rank.py"
    path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(text))
    return [sys.executable, str(path)]


def test_every_rank_gets_its_place_and_the_others_output_is_kept(tmp_path: Path) -> None:
    outcome = run_local(script(tmp_path, "print(rank, os.environ['WORLD_SIZE'])"), 2, tmp_path)
    assert (outcome.codes, outcome.first_failed, outcome.received) == ((0, 0), None, 0)
    assert (tmp_path / "rank-1.out").read_text() == "1 2\n"


def test_when_one_rank_fails_the_waiting_ones_are_killed(tmp_path: Path) -> None:
    command = script(tmp_path, "sys.exit(7) if rank == 1 else time.sleep(60)")
    outcome = run_local(command, 2, tmp_path, grace_s=0.1)
    assert outcome.first_failed == 1
    assert outcome.codes == (-signal.SIGKILL, 7)


def test_a_stopped_rank_does_not_outlive_the_job(tmp_path: Path) -> None:
    command = script(tmp_path, "sys.exit(1) if rank == 0 else os.kill(os.getpid(), signal.SIGSTOP)")
    assert run_local(command, 2, tmp_path, grace_s=0.1).codes == (1, -signal.SIGKILL)


def test_a_signal_is_passed_on_to_every_rank(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        open(f"ready-{rank}", "w").close()
        time.sleep(60)
        """,
    )
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import sys\nfrom pathlib import Path\nfrom moeframe.launch.local import run_local\n"
        f"print(run_local({command!r}, 2, Path('.')), flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, str(driver)], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    wait_for(tmp_path / "ready-0", tmp_path / "ready-1")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=30)
    assert "codes=(5, 5)" in output
    assert "received=15" in output


def test_no_rank_outlives_a_killed_parent(tmp_path: Path) -> None:
    command = script(tmp_path, "open(f'pid-{rank}', 'w').write(str(os.getpid())); time.sleep(60)")
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"from pathlib import Path\nfrom moeframe.launch.local import run_local\nrun_local({command!r}, 2, Path('.'))\n"
    )
    process = subprocess.Popen([sys.executable, str(driver)], cwd=tmp_path)
    files = [tmp_path / "pid-0", tmp_path / "pid-1"]
    wait_for(*files)
    pids = [int(path.read_text()) for path in files]
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "a rank outlived its parent"
        time.sleep(0.05)


def wait_for(*paths: Path) -> None:
    deadline = time.monotonic() + 30
    while not all(path.exists() and (path.stat().st_size or "ready" in path.name) for path in paths):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "zombie" not in Path(f"/proc/{pid}/status").read_text()
