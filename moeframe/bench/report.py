"""What a measurement of the overlap says: as data, and in words. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["lines"]

_GIB: Final = 2**30


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report of what `moeframe.bench.overlap` wrote."""
    plain, own, kept = data["schedules"]
    yield (
        f"{data['name']}: dispatcher {data['dispatcher']}, sharding {data['sharding']}, {data['world_size']} x "
        f"{data['device']}, torch {data['torch']}"
    )
    yield (
        f"{data['micro_batches']} micro-batches of {data['tokens']} tokens a rank and step; a step is forward, "
        "backward and the sum of gradients"
    )
    if data["slow_us"]:
        yield f"SLOWED: each dispatch and combine, forward or backward, takes {data['slow_us']:g} us longer on purpose"
    yield ""
    yield f"{'schedule':<34}{'step ms':>10}{'':>10}{'peak GiB':>10}{'':>10}"
    for schedule in (plain, own, kept):
        faster = 1 - schedule["step_ms"] / plain["step_ms"]
        more = (schedule["peak_bytes"] - plain["peak_bytes"]) / _GIB
        yield (
            f"{schedule['name']:<34}{schedule['step_ms']:>10.1f}{_signed(-100 * faster, '%'):>10}"
            f"{schedule['peak_bytes'] / _GIB:>10.2f}{_signed(more, ''):>10}"
        )
    yield f"steps (ms): {'; '.join(_steps(schedule) for schedule in (plain, own, kept))}"
    yield (
        "peak: device memory over parameters and optimizer state, the worst rank's; one layer's activations are "
        f"{data['layer_bytes'] / _GIB:.2f} GiB"
    )
    yield ""
    yield f"{'dispatch and combine':<34}{'ms':>10}{'hidden':>10}{'ceiling':>10}{'of paired':>10}"
    for schedule in (plain, own):
        found = schedule["communication"]
        yield (
            f"{schedule['name']:<34}{found['total_ms']:>10.1f}{found['share']:>10.1%}{found['ceiling']:>10.1%}"
            f"{found['paired_share']:>10.1%}"
        )
    yield (
        "hidden: kernels of dispatch and combine that ran beside kernels of other phases on another stream, in one "
        "profiled step of rank 0; ceiling: if all that has a partner were hidden"
    )


def _signed(value: float, unit: str) -> str:
    return f"({value:+.1f}{unit})" if unit else f"({value:+.2f})"


def _steps(schedule: Mapping[str, Any]) -> str:
    return " ".join(f"{step:.1f}" for step in schedule["steps_ms"])
