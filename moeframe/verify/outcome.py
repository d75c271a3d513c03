"""What came of one check of a conformance kit, and where a plugin's own code raised."""

from __future__ import annotations

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import moeframe

__all__ = ["Outcome", "raised_at"]

_FRAME: Final = re.compile(r'^ *File "([^"]+)", line (\d+),? in (\S+)', re.MULTILINE)
_CORE: Final = Path(moeframe.__file__).parent
_STANDARD: Final = Path(sysconfig.get_path("stdlib"))


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a check.

    Attributes:
        check: its name.
        ranks: how many ran it.
        verdict: ``ok``, ``FAILED`` or ``left out``.
        message: what is wrong, or why it was left out.
        where: the place in the plugin's own code that raised; empty where numbers are wrong.
        details: tracebacks, and what the ranks printed; empty unless it failed.
    """

    check: str
    ranks: int
    verdict: Literal["ok", "FAILED", "left out"]
    message: str = ""
    where: str = ""
    details: str = ""


def raised_at(traceback: str) -> str:
    """Return the innermost place of a traceback, or of a stack of faulthandler, that is neither core's nor torch's.

    Empty where there is none.
    """
    frames = _FRAME.findall(traceback)
    if "most recent call first" in traceback:
        frames.reverse()
    own = [frame for frame in frames if not _is_foreign(frame[0])]
    return "{}:{}, in {}".format(*own[-1]) if own else ""


def _is_foreign(name: str) -> bool:
    """Whether a file belongs to moeframe's core, to torch or to Python's standard library, or is no file."""
    file = Path(name)
    if name.startswith("<") or file.is_relative_to(_CORE) or "torch" in file.parts:
        return True
    return file.is_relative_to(_STANDARD) and "site-packages" not in file.parts
