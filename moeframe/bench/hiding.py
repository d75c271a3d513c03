"""How much of the communication ran beside something else. Importable without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from moeframe.bench.intervals import Interval, common, length, union
from moeframe.bench.kernels import Kernel

__all__ = ["Hiding", "hiding"]


@dataclass(frozen=True, kw_only=True)
class Hiding:
    """Milliseconds of dispatch and combine in a step, in kernels of all of their streams.

    Paired: of all micro-batches but the forward of the first and the backward of the last, which have no partner.
    """

    total_ms: float
    hidden_ms: float
    paired_ms: float
    paired_hidden_ms: float

    @property
    def share(self) -> float:
        """Hidden share of the whole step."""
        return self.hidden_ms / self.total_ms if self.total_ms else 0.0

    @property
    def ceiling(self) -> float:
        """The share if all that has a partner were hidden."""
        return self.paired_ms / self.total_ms if self.total_ms else 0.0

    @property
    def paired_share(self) -> float:
        """Hidden share of what has a partner."""
        return self.paired_hidden_ms / self.paired_ms if self.paired_ms else 0.0

    def to_json(self) -> dict[str, float]:
        """Return times and shares."""
        shares = {"share": self.share, "ceiling": self.ceiling, "paired_share": self.paired_share}
        return {name: round(value, 5) for name, value in (asdict(self) | shares).items()}


def communicates(kernel: Kernel) -> bool:
    """Say whether a kernel belongs to dispatch or combine, whatever it does there."""
    return kernel.place.phase in ("dispatch", "combine")


def hiding(kernels: Sequence[Kernel], num_micro_batches: int) -> Hiding:
    """Intersect the kernels of dispatch and combine with all kernels of other streams."""
    communication = [kernel for kernel in kernels if communicates(kernel)]
    hidden: dict[bool, list[Interval]] = {True: [], False: []}
    total: dict[bool, list[Interval]] = {True: [], False: []}
    for stream in {kernel.stream for kernel in communication}:
        others = union(
            (kernel.start, kernel.end) for kernel in kernels if kernel.stream != stream and not communicates(kernel)
        )
        for paired in (True, False):
            own = union(
                (kernel.start, kernel.end)
                for kernel in communication
                if kernel.stream == stream and _has_partner(kernel, num_micro_batches) is paired
            )
            total[paired] += own
            hidden[paired] += common(own, others)
    total_ms = {paired: length(union(found)) / 1e3 for paired, found in total.items()}
    hidden_ms = {paired: length(union(found)) / 1e3 for paired, found in hidden.items()}
    return Hiding(
        total_ms=total_ms[True] + total_ms[False],
        hidden_ms=hidden_ms[True] + hidden_ms[False],
        paired_ms=total_ms[True],
        paired_hidden_ms=hidden_ms[True],
    )


def _has_partner(kernel: Kernel, num_micro_batches: int) -> bool:
    alone = (0, "forward"), (num_micro_batches - 1, "backward")
    return (kernel.place.micro_batch, kernel.place.direction) not in alone
