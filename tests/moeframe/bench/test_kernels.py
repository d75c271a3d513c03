"""Reading a profiler's trace: which phase launched a kernel, and what ran beside what."""

from __future__ import annotations

import time
from typing import Any

import pytest

from moeframe import trace
from moeframe.bench.hiding import hiding
from moeframe.bench.kernels import MARK, Kernel, SpanLog, read_kernels
from moeframe.bench.slots import slots, stretch
from moeframe.errors import ContractError
from moeframe.trace import Place


class Clock:
    """The host's clock, set by hand; microseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter_ns", lambda: int(self.now * 1e3))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def launch(number: int, at: float, start: float, end: float, stream: int = 7) -> list[dict[str, Any]]:
    """Return the two events of one kernel, as torch.profiler writes them."""
    return [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": at,
            "dur": 5.0,
            "tid": 1,
            "args": {"correlation": number},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": f"kernel {number}",
            "ts": start,
            "dur": end - start,
            "args": {"correlation": number, "stream": stream},
        },
    ]


def noted(clock: Clock) -> SpanLog:
    """Two phases of micro-batch 1; the host's clock is 1000 us behind the profiler's."""
    spans = SpanLog()
    clock.now = 0.0
    spans.mark()
    with trace.listen(spans), trace.at(step=3, micro_batch=1):
        clock.now = 10.0
        with trace.span(layer=2, phase="attend"):
            clock.now = 20.0
            with trace.span(layer=2, phase="dispatch"):
                clock.now = 30.0
            clock.now = 40.0
    return spans


def test_a_kernel_belongs_to_the_innermost_span_of_its_launch(clock: Clock) -> None:
    events = [
        {"ph": "X", "cat": "user_annotation", "name": MARK, "ts": 1000.0, "dur": 1.0, "args": {}},
        *launch(1, at=1005.0, start=1050.0, end=1060.0),
        *launch(2, at=1012.0, start=1060.0, end=1070.0),
        *launch(3, at=1025.0, start=1055.0, end=1065.0, stream=9),
        *launch(4, at=1035.0, start=1080.0, end=1090.0),
        *launch(5, at=1050.0, start=1090.0, end=1095.0),
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1012.0, "dur": 3.0},
    ]
    kernels = read_kernels({"traceEvents": events}, noted(clock))
    assert [(kernel.name, kernel.place.phase) for kernel in kernels] == [
        ("kernel 1", ""),
        ("kernel 3", "dispatch"),
        ("kernel 2", "attend"),
        ("kernel 4", "attend"),
        ("kernel 5", ""),
    ]
    assert kernels[1].place == Place(step=3, micro_batch=1, layer=2, phase="dispatch")
    assert (kernels[1].stream, kernels[1].start, kernels[1].end) == (9, 1055.0, 1065.0)


@pytest.mark.parametrize("left_out", [MARK, "cudaLaunchKernel", "kernel 1"])
def test_a_trace_that_says_too_little_is_refused(clock: Clock, left_out: str) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": MARK, "ts": 1000.0, "dur": 1.0, "args": {}}
    events = [mark, *launch(1, at=1005.0, start=1050.0, end=1060.0)]
    with pytest.raises(ContractError, match="it needs both"):
        read_kernels({"traceEvents": [event for event in events if event["name"] != left_out]}, noted(clock))


def kernel(stream: int, start: float, end: float, phase: Any, micro_batch: int = 1, **place: Any) -> Kernel:
    where = Place(micro_batch=micro_batch, layer=place.pop("layer", 1), phase=phase, **place)
    return Kernel(name="k", stream=stream, start=start, end=end, place=where)


def test_communication_is_hidden_where_another_stream_works() -> None:
    found = hiding(
        [
            kernel(7, 0, 1000, "attend"),
            kernel(9, 500, 1500, "dispatch"),  # half of it beside attend
            kernel(7, 1400, 1600, "combine"),  # communication hides no communication
            kernel(7, 2000, 3000, "dispatch", micro_batch=0),  # the first forward has no partner
            kernel(9, 4000, 5000, "combine", micro_batch=2, direction="backward"),  # nor has the last backward
            kernel(7, 4000, 4250, "attend"),
        ],
        num_micro_batches=3,
    )
    assert (found.paired_ms, found.paired_hidden_ms) == (1.1, 0.5)
    assert (found.total_ms, found.hidden_ms) == (3.1, 0.75)
    assert found.ceiling == pytest.approx(1.1 / 3.1)
    assert found.to_json()["paired_share"] == pytest.approx(0.5 / 1.1, abs=1e-4)


def test_a_step_without_communication_has_no_share() -> None:
    found = hiding([kernel(7, 0, 1000, "attend")], num_micro_batches=1)
    assert (found.share, found.ceiling, found.paired_share) == (0.0, 0.0, 0.0)


def test_kernels_of_a_phase_become_one_slot_unless_another_or_a_pause_is_between() -> None:
    found = slots(
        [
            kernel(7, 0, 10, "attend"),
            kernel(9, 5, 8, "dispatch"),
            kernel(7, 12, 20, "attend"),
            kernel(7, 20, 25, "experts"),
            kernel(7, 100, 110, "experts"),
        ]
    )
    assert [(slot.stream, slot.phase, slot.start, slot.end) for slot in found] == [
        (7, "attend", 0, 20),
        (9, "dispatch", 5, 8),
        (7, "experts", 20, 25),
        (7, "experts", 100, 110),
    ]


def test_the_stretch_to_draw_is_a_forward_through_two_moe_layers() -> None:
    kernels = [
        kernel(7, 0, 100, "attend", layer=0),
        *(
            kernel(
                7 + 2 * (phase in ("dispatch", "combine")),
                layer * 1000 + at,
                layer * 1000 + at + 100,
                phase,
                layer=layer,
            )
            for layer in (1, 2, 3)
            for at, phase in enumerate(("attend", "dispatch", "experts", "combine"))
        ),
    ]
    kernels = sorted(kernels, key=lambda one: one.start)
    found = stretch(kernels, micro_batch=1)
    assert {slot.layer for slot in found} == {1, 2}
    assert min(slot.start for slot in found) == 0
    assert stretch(kernels, micro_batch=5) == []
