"""Strikes a job at a place of one's choice, whatever its backends are. Used with --plugin.

The environment variable STRIKE is ``fault rank step layer phase direction``; rank -1: all of them. It strikes once,
just before the phase runs, and not again after a restart by torchrun.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from moeframe import trace
from moeframe.hooks import hookimpl
from moeframe.trace import Place

listening = ExitStack()
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


class Striker:
    """Listens, and strikes."""

    def __init__(self, given: str) -> None:
        fault, _, step, layer, phase, direction = given.split()
        self._fault = fault
        self._where = (int(step), int(layer), phase, direction)
        self._kept: list[object] = []

    def enter(self, place: Place) -> None:
        if (place.step, place.layer, place.phase, place.direction) != self._where:
            return
        self._where = (-1, -1, "", "")
        if self._fault in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self._fault])
        elif self._fault == "raise":
            raise ValueError("struck")
        elif self._fault == "late":
            time.sleep(1e6)
        elif self._fault == "loop":
            while True:
                pass
        elif self._fault == "idle":
            threading.Event().wait()
        else:
            self._strike_device()

    def _strike_device(self) -> None:
        import torch

        if self._fault == "spin":  # a kernel that does not return
            torch.cuda._sleep(10**13)
        elif self._fault == "oom":
            torch.cuda.set_per_process_memory_fraction(0.02)
            self._kept = [torch.empty(2**28, device="cuda") for _ in range(100)]

    def leave(self, place: Place) -> None:
        """Do nothing."""


@hookimpl
def moeframe_on_run_start(run_dir: Path, rank: int) -> None:
    given = os.environ.get("STRIKE", "") if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0" else ""
    if given and int(given.split()[1]) in (-1, rank):
        listening.enter_context(trace.listen(Striker(given), backward="begin"))
