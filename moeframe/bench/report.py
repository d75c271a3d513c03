"""What a measurement of the overlap says: as data, and in words. Importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

__all__ = ["lines"]

_GIB: Final = 2**30


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report of what `moeframe.bench.overlap` wrote."""
    yield (
        f"{data['name']}: dispatcher {data['dispatcher']}, sharding {data['sharding']}, {data['world_size']} x "
        f"{data['device']}, torch {data['torch']}"
    )
    yield (
        f"{data['micro_batches']} micro-batches of {data['tokens']} tokens a rank and step; a step is forward, "
        "backward and the sum of gradients"
    )
    yield (
        "peak: device memory over parameters and optimizer state; one layer's activations are "
        f"{data['layer_bytes'] / _GIB:.2f} GiB"
    )
    yield "comm: kernels of dispatch and combine in one profiled step of rank 0; hidden: beside other phases on another"
    yield "stream; ceiling: if all that has a partner were hidden; of paired: the hidden share of what has a partner"
    for one in data["passes"]:
        yield ""
        yield from _pass(one)


def _pass(one: Mapping[str, Any]) -> Iterator[str]:
    if one["slow_us"]:
        yield f"SLOWED: each dispatch and combine, forward or backward, takes {one['slow_us']:g} us longer on purpose"
    schedules = one["schedules"]
    headings = f"{'peak GiB':>9}{'':>9}{'comm ms':>9}{'hidden':>8}{'ceiling':>8}{'of paired':>10}"
    yield f"{'schedule':<32}{'step ms':>9}{'':>9}{headings}"
    for schedule in schedules:
        change = 100 * (schedule["step_ms"] / schedules[0]["step_ms"] - 1)
        more = (schedule["peak_bytes"] - schedules[0]["peak_bytes"]) / _GIB
        row = (
            f"{schedule['name']:<32}{schedule['step_ms']:>9.1f}{f'({change:+.1f}%)':>9}"
            f"{schedule['peak_bytes'] / _GIB:>9.2f}{f'({more:+.2f})':>9}"
        )
        found = schedule.get("communication")
        if found is not None:
            shares = f"{found['share']:>8.1%}{found['ceiling']:>8.1%}{found['paired_share']:>10.1%}"
            row += f"{found['total_ms']:>9.1f}{shares}"
        yield row
    yield f"steps (ms): {'; '.join(_steps(schedule) for schedule in schedules)}"


def _steps(schedule: Mapping[str, Any]) -> str:
    return " ".join(f"{step:.1f}" for step in schedule["steps_ms"])
