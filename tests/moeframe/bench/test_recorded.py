"""A trace that torch.profiler recorded on an H200: two streams, matrix products beside copies."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from moeframe.bench.hiding import hiding
from moeframe.bench.kernels import Kernel, SpanLog, read_kernels
from moeframe.trace import Place

DATA = Path(__file__).parents[2] / "data" / "bench" / "two_streams.json"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[Kernel]:
    """Play back what the listener was told, at the times when it was."""
    recorded = json.loads(DATA.read_text(encoding="utf-8"))
    spans = SpanLog()
    for event, at_ns, place in recorded["spans"]:
        monkeypatch.setattr(time, "perf_counter_ns", lambda at_ns=at_ns: at_ns)
        if event == "mark":
            spans.mark()
            continue
        micro_batch, layer, phase, direction = place
        where = Place(micro_batch=micro_batch, layer=layer, phase=phase, direction=direction)
        (spans.enter if event == "enter" else spans.leave)(where)
    return read_kernels(recorded["trace"], spans)


def test_products_and_copies_ran_on_two_streams(kernels: list[Kernel]) -> None:
    products = [kernel for kernel in kernels if "nvjet" in kernel.name]
    copies = [kernel for kernel in kernels if "DtoD" in kernel.name]
    assert len(products) == 6  # one in attend, two in experts, of two micro-batches
    assert len(copies) == 10  # four in dispatch, one in combine
    assert len({kernel.stream for kernel in products}) == 1
    beside = {kernel.stream for kernel in copies} - {kernel.stream for kernel in products}
    assert len(beside) == 1
    assert sum(kernel.stream in beside for kernel in copies) == 8
    assert all(kernel.start < kernel.end for kernel in kernels)
    assert kernels == sorted(kernels, key=lambda kernel: kernel.start)


def test_part_of_the_copies_is_hidden(kernels: list[Kernel]) -> None:
    found = hiding(kernels, num_micro_batches=2)
    assert 0 < found.hidden_ms < found.total_ms
    assert 0 < found.share < 1
