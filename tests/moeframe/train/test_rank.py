from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path


def test_ctrl_c_while_torch_is_imported_ends_a_rank_without_a_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "moeframe.train.rank", str(tmp_path), "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (-signal.SIGINT, "")
