"""What a rank that crashed left behind: Python's fault handler writes where its threads were to its stack file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Crash", "crash_text", "read_crash"]

_BEGINS: Final = "Fatal Python error: "
_FRAME: Final = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$')
_SIGNALS: Final = {
    "Aborted": "SIGABRT",
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating-point exception": "SIGFPE",
    "Floating point exception": "SIGFPE",
}
_LAST: Final = 256 * 1024
"""Bytes at the end of the file that are looked at: a crash is the last thing in it."""
_IN_TORCH: Final = "torch/distributed/"
_COLLECTIVES: Final = f"{_IN_TORCH}distributed_c10d.py"
_WRAPPERS: Final = ("wrapper", "wait")


@dataclass(frozen=True, kw_only=True)
class Crash:
    """`signal`: its name, or what Python said. `where`: the innermost line known of the thread that crashed, or "".

    `collective`: the call of torch.distributed that this thread was in, with the line that called it, or if none of
    Python's threads crashed, that any was in; "" if none was.
    """

    signal: str
    where: str
    collective: str


def crash_text(file: Path) -> str:
    """Return what the fault handler wrote at a crash; "" where there was none, or nothing can be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - _LAST))
            text = opened.read().decode(errors="replace")
    except OSError:
        return ""
    at = text.rfind(_BEGINS)
    return "" if at < 0 else text[at:]


def read_crash(file: Path) -> Crash | None:
    """Return how and where the rank crashed whose stacks a file holds; None if it did not."""
    text = crash_text(file)
    if not text:
        return None
    how = text.splitlines()[0].removeprefix(_BEGINS)
    threads = [_frames(part) for part in text.split("hread 0x")[1:]]
    crashed = [frames for part in text.split("Current thread 0x")[1:] if (frames := _frames(part))]
    where = next((_told(frames[0]) for frames in crashed), "")
    # A thread of gloo's own is none of Python's. The main thread comes last: it is the oldest.
    collective = next(filter(None, map(_collective, crashed or reversed(threads))), "")
    return Crash(signal=_SIGNALS.get(how, how), where=where, collective=collective)


def _frames(thread: str) -> list[re.Match[str]]:
    """Return the frames of a thread, innermost first; the part of a text may go on with other threads'."""
    own = thread.partition("\n\n")[0]
    return [frame for line in own.splitlines() if (frame := _FRAME.match(line))]


def _told(frame: re.Match[str]) -> str:
    return f"{frame['function']} ({frame['file']}, line {frame['line']})"


def _collective(frames: list[re.Match[str]]) -> str:
    """Return a collective that a thread was in: what it is called, and who called it."""
    names = [
        frame["function"]
        for frame in frames
        if frame["file"].endswith(_COLLECTIVES) and frame["function"] not in _WRAPPERS
    ]
    if not names:
        return ""
    caller = next((frame for frame in frames if _IN_TORCH not in frame["file"]), None)
    return names[0] if caller is None else f"{names[0]}, called by {_told(caller)}"
