"""How long the API check of this project takes: ``python tests/benchmarks/compat_speed.py [ROUNDS]``.

Cold: nothing is kept, and every entry of the ledger is executed. Cached: the baseline and what was read of this tree
are kept. Each is told in seconds, and in starts of Python that import the standard modules the check needs, which
compares machines. The smallest of the rounds counts, since others use the machine too; files that Python compiles are
there before the clock starts. The goals hold on two idle cores: 1.5 s cold and 0.4 s cached.
"""

from __future__ import annotations

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECK = (sys.executable, "-m", "moeframe_compat", "check")
START = (sys.executable, "-c", "import argparse, ast, dataclasses, json, pathlib, pickle, tomllib")
GOALS = {"cold": 1.5, "cached": 0.4}


def run(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float]:
    """Return the seconds that a command takes, and those of all its processes on cores; it must end well."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    wall = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime


def rounds(command: Sequence[str], number: int, cache: Path, before: Callable[[], None]) -> list[tuple[float, float]]:
    """Run a command several times, each after `before`; the first time does not count."""
    environment = {**os.environ, "MOEFRAME_COMPAT_CACHE": str(cache)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # the checker would be compiled anew every time
    taken = []
    for _ in range(number + 1):
        before()
        taken.append(run(command, environment))
    return taken[1:]


def main() -> None:
    """Print a table."""
    number = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory(prefix="moeframe-compat-speed-") as folder:
        cache = Path(folder, "kept")
        taken = {
            "start": rounds(START, number, cache, lambda: None),
            "cold": rounds(CHECK, number, cache, lambda: shutil.rmtree(cache, ignore_errors=True)),
            "cached": rounds(CHECK, number, cache, lambda: None),
        }
    unit = min(wall for wall, _ in taken["start"])
    sys.stdout.write(f"{'':8} {'least s':>8} {'median s':>8} {'on cores':>8} {'starts':>8} {'goal s':>8}\n")
    for name, times in taken.items():
        walls, cores = [wall for wall, _ in times], min(core for _, core in times)
        goal = f"{GOALS[name]:8.2f}" if name in GOALS else ""
        least, median = min(walls), statistics.median(walls)
        sys.stdout.write(f"{name:8} {least:8.2f} {median:8.2f} {cores:8.2f} {least / unit:8.1f} {goal}\n")


if __name__ == "__main__":
    main()
