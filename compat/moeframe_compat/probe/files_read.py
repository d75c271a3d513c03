"""What a process has read, so that its answers can be kept until one of those files changes. Standard library only."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

_CODE = (".py", ".toml", ".yaml", ".yml", ".json", ".so", ".pth", ".dist-info", ".egg-info", ".egg-link")


def fingerprint(path: str) -> str:
    """The state of a file or folder: a file's size and times (one of which nobody can set back), names in a folder."""
    try:
        if os.path.isdir(path):  # noqa: PTH112 - several hundred calls
            names = sorted(n for n in os.listdir(path) if n.endswith(_CODE) or n.isidentifier())  # noqa: PTH208
            return hashlib.sha256("\0".join(names).encode()).hexdigest()[:16]
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return "none"
    return f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size}"


class Recorder:
    """Notes every file that this process opens from now on, and what it has imported."""

    def __init__(self) -> None:
        self._opened: set[str] = set()
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.listdir", "os.scandir") and arguments and isinstance(arguments[0], str):
            self._opened.add(arguments[0])

    def read(self, *, apart_from: Path) -> dict[str, str]:
        """Files and folders with their state; not those below a folder of the process's own."""
        imported = {str(m.__file__) for m in list(sys.modules.values()) if getattr(m, "__file__", None)}
        own = str(apart_from)
        places = {os.path.abspath(p) for p in self._opened | imported | set(sys.path)}  # noqa: PTH100
        return {
            p: fingerprint(p)
            for p in sorted(places)
            if not p.startswith((own, "/proc", "/dev", "/sys")) and "__pycache__" not in p
        }
