"""One process at a time, on one machine or on those that share a file system with locks."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

__all__ = ["locked"]

_POLL_S: Final = 0.05
_TELL_AFTER_S: Final = 2.0
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


@contextmanager
def locked(
    path: Path, *, tell: Callable[[str], None], yield_s: float = 0.0, needless: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Hold a lock that ends with the process.

    On a file system that knows no locks several processes may be inside at once.

    Args:
        path: of the lock's file, which stays.
        tell: gets a sentence when another process has held the lock for a while.
        yield_s: leave the lock to others for so long, unless one takes it sooner.
        needless: asked while leaving it to others; true: there is nothing left to wait for.
    """
    with path.open("a+", encoding="ascii") as file:
        until = time.monotonic() + yield_s
        while time.monotonic() < until and not needless() and _take(file):
            fcntl.flock(file, fcntl.LOCK_UN)
            time.sleep(_POLL_S)
        _wait(file, tell)
        file.seek(0)
        file.truncate()
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        yield


def _take(file: IO[str]) -> bool:
    """Take the lock if it is free; true as well where there are no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def _wait(file: IO[str], tell: Callable[[str], None]) -> None:
    begun, told = time.monotonic(), False
    while not _take(file):
        if not told and time.monotonic() - begun > _TELL_AFTER_S:
            file.seek(0)
            tell(f"waiting for {file.read() or 'another process'}, which prepares the same data")
            told = True
        time.sleep(_POLL_S)
