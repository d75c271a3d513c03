"""Tests that need two GPUs, or one where they are marked so, and what they leave behind.

``MOEFRAME_GPU_RESULTS=FILE`` has the combinations that were proved written to a file: a list of objects with
`overrides`, `status`, `reason`, `date` and `machine`, as docs/matrix_gpu.json.

Run one after the other they take too long. So `nox -s gpu` runs them in many processes at once, those of a class in
one, which keeps its ranks; then, one by one, those marked `alone`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from moeframe.hooks.catalog import Catalog, unusable_reasons
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.needs import why_no_cuda
from moeframe.testing.ranks import RankPool
from moeframe.verify.matrix.cells import key_of

RESULTS = "MOEFRAME_GPU_RESULTS"
SHARE = "MOEFRAME_SHARE_GPU"
"""Set to 1 where there is one GPU: tests that compare the numbers of two ranks let them share it, which is slow."""
FOLDER = Path(__file__).parent
MEASURED = "measured"


def visible_gpus() -> list[str]:
    """Return how CUDA_VISIBLE_DEVICES names the GPUs of this machine. Imports no torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    devices = [file.name for file in Path("/dev").iterdir() if re.fullmatch(r"nvidia\d+", file.name)]
    return [str(number) for number in range(len(devices))]


def why_not(needed: int) -> str:
    """Return why tests on that many GPUs cannot run here, empty when they can. Imports no torch."""
    missing = why_no_cuda()
    number = len(visible_gpus())
    if missing is None and number < needed:
        missing = f"this machine shows {number} CUDA device(s); {SHARE}=1 lets two ranks share one."
    return f"needs {'a GPU' if needed == 1 else 'two GPUs'}: {missing}" if missing is not None else ""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "one_gpu: in tests/gpu: one GPU is enough")
    config.addinivalue_line("markers", "alone: in tests/gpu: measures speed, or fills the GPUs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            shared = os.environ.get(SHARE) == "1" and not item.get_closest_marker("alone")
            if reason := why_not(1 if shared or item.get_closest_marker("one_gpu") else 2):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.getreports(outcome)]
    lines = [text for report in reports for name, text in report.user_properties if name == MEASURED]
    if lines:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(lines))


def write_down(entry: dict[str, Any]) -> None:
    """Put an entry into the file of results, in place of an older one of the same combination."""
    name = os.environ.get(RESULTS)
    if not name:
        return
    with Path(name).open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # other processes prove other combinations
        file.seek(0)
        older = json.loads(file.read() or "[]")
        entries = {key_of(one["overrides"]): one for one in older} | {key_of(entry["overrides"]): entry}
        lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in entries.values())
        file.truncate(0)
        file.write(f"[\n{lines}\n]\n")


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Return a pool of two ranks, each on a GPU of its own (NCCL); with one GPU, of one rank, or of two that share."""
    size = 2 if os.environ.get(SHARE) == "1" else min(2, len(visible_gpus()))
    with RankPool(size, device="cuda") as pool:
        yield pool


@pytest.fixture(scope="session")
def require_usable() -> Callable[[str, str], None]:
    """Return what skips a test, with the reasons, when this machine cannot use a backend."""
    catalog = Catalog(build_plugin_manager())

    def require(kind: str, name: str) -> None:
        if (kind, name) == ("dispatcher", "deepep") and os.environ.get(SHARE) == "1":
            pytest.skip("dispatcher deepep: its library wants NVLink between two ranks, and one GPU has none to itself")
        reasons = unusable_reasons(catalog.resolve(kind, name), device_kind="cuda")
        if reasons:
            pytest.skip(f"{kind} {name}: {' '.join(reasons)}")

    return require


@pytest.fixture
def proved() -> Callable[[Sequence[str], str], None]:
    """Return what notes that a combination was proved: ``proved(overrides, how)``."""
    import torch

    def note(overrides: Sequence[str], how: str) -> None:
        number, device = torch.cuda.device_count(), torch.cuda.get_device_name()
        shared = " shared by two ranks" if number == 1 else ""
        write_down(
            {
                "overrides": list(overrides),
                "status": "proved",
                "reason": how,
                "date": datetime.now(tz=UTC).date().isoformat(),
                "machine": f"{number} x {device}{shared}, torch {importlib.metadata.version('torch')}",
            }
        )

    return note


@pytest.fixture
def gpus() -> list[str]:
    """Return values of CUDA_VISIBLE_DEVICES for two jobs of one GPU each; with one GPU, they share it."""
    return (visible_gpus() * 2)[:2]


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Return what adds a line to the summary of measurements."""
    return lambda text: record_property(MEASURED, text)
