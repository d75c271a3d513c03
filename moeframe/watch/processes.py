"""Processes of this machine: does one live, is it stopped, where are its threads. Linux."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Final, Literal, TypeAlias

__all__ = ["Health", "Process", "end", "health", "how_it_ended", "machine", "py_spy", "signal_to", "start_ticks"]

Process: TypeAlias = tuple[int, int]
"""Its pid and when it started, in clock ticks since boot, which together name it for good."""
Health: TypeAlias = Literal["alive", "stopped", "dead", "unknown"]

_STATE: Final = 2  # fields of /proc/<pid>/stat, see proc(5)
_STARTED: Final = 21


def machine() -> str:
    """Return what tells this machine, and its container, from all others: pids mean nothing elsewhere.

    Names of hosts do not: containers and clones have them alike.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # a container that hides them
        return socket.gethostname()


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    name_end = text.rindex(")")  # a command's name may hold anything
    return [str(pid), text[: name_end + 1], *text[name_end + 2 :].split()]


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none. Tells a reused pid."""
    fields = _stat(pid)
    return 0 if fields is None else int(fields[_STARTED])


def health(pid: int, ticks: int) -> Health:
    """Return how a process of this machine does that had `ticks` as its start; a zombie is dead."""
    fields = _stat(pid)
    if fields is None or int(fields[_STARTED]) != ticks or fields[_STATE] in "ZX":
        return "dead"
    return "stopped" if fields[_STATE] in "Tt" else "alive"


def how_it_ended(code: int) -> str:
    """Return how a process ended, in words; a negative code is a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def end(pid: int, ticks: int) -> None:
    """Kill a process, if it is still the one that started then; a stopped one too."""
    signal_to(pid, ticks, signal.SIGKILL)


def signal_to(pid: int, ticks: int, number: int) -> None:
    """Send a signal to a process, if it is still the one that started then."""
    if health(pid, ticks) != "dead":
        with contextlib.suppress(ProcessLookupError):  # gone a moment ago
            os.kill(pid, number)


def py_spy(pid: int, limit_s: float) -> str:
    """Return the stacks that py-spy sees, with native frames; "" where it is not installed, else why it failed."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    command = [program, "dump", "--native", "--nonblocking", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        return f"py-spy did not answer within {limit_s:g} s\n"
    return done.stdout if done.returncode == 0 else f"py-spy: {done.stderr.strip()}\n"
