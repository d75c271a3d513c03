"""One rank's numbers against the reference: how far apart, where, and by which factor. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy

from moeframe.verify.records import TENSORS, Array, RankNumbers, StepNumbers

__all__ = [
    "QUANTITIES",
    "TOLERANCE",
    "Compared",
    "Difference",
    "Group",
    "compare",
    "cover",
    "groups_of",
    "in_words",
    "share_of",
]

TOLERANCE: Final = 1e-9
"""Largest |a - b| of a tensor, relative to its largest |b| (design, section 6)."""
QUANTITIES: Final = ("losses", "loads", "gradients", "norm", "clipped", "biases", "parameters")
"""What is compared, in the order in which a step makes it."""

_FLOOR: Final = 1e-12
"""Tensors whose largest value is smaller are compared with this in place of it."""
_VISIBLE: Final = 1e-3
"""Ratios are taken of elements that are not far smaller than the largest one."""
_UNIFORM: Final = 1e-6
_SHOWN: Final = 3


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One number or tensor that is not the reference's.

    `relative`: max|a - b| / max|b|. `ratio`: a / b where it is the same everywhere, else None. `median`: of a / b.
    """

    quantity: str
    name: str
    step: int
    rank: int
    relative: float
    ratio: float | None
    median: float | None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """All of one layout: the worst relative difference of each quantity, and every difference beyond tolerance."""

    worst: Mapping[str, float]
    differences: tuple[Difference, ...]

    @property
    def first_step(self) -> int | None:
        """The first step in which something differs."""
        return min((difference.step for difference in self.differences), default=None)

    def of(self, quantity: str) -> list[Difference]:
        """Return the differences of a quantity in the first step that has any."""
        step = self.first_step
        return [one for one in self.differences if one.step == step and one.quantity == quantity]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Differences of one quantity with one ratio (None: no single one), under as few patterns as say it all."""

    quantity: str
    patterns: tuple[str, ...]
    ratio: float | None
    median: float | None
    relative: float
    ranks: tuple[int, ...]
    step: int


def compare(ranks: Sequence[RankNumbers], reference: RankNumbers) -> Compared:
    """Compare every rank of a layout with the reference, experts by their global number."""
    worst = dict.fromkeys(QUANTITIES, 0.0)
    differences: list[Difference] = []
    for found in _all_pairs(ranks, reference):
        worst[found.quantity] = max(worst[found.quantity], found.relative)
        if not found.relative <= TOLERANCE:
            differences.append(found)
    for missing in _missing(ranks, reference):
        worst[missing.quantity] = math.inf
        differences.append(missing)
    return Compared(worst=worst, differences=tuple(differences))


def _all_pairs(ranks: Sequence[RankNumbers], reference: RankNumbers) -> Iterator[Difference]:
    for numbers in ranks:
        for step, (own, wanted) in enumerate(zip(numbers.steps, reference.steps, strict=True)):
            place = (step, numbers.rank)
            for name, value in wanted.losses.items():
                yield _difference("losses", name, place, numpy.asarray(own.losses[name]), numpy.asarray(value))
            yield _difference("loads", "tokens of each expert", place, own.loads, wanted.loads)
            yield _difference("norm", "grad_norm", place, numpy.asarray(own.grad_norm), numpy.asarray(wanted.grad_norm))
            for quantity in TENSORS:
                expected: Mapping[str, Array] = getattr(wanted, quantity)
                for name, tensor in getattr(own, quantity).items():
                    if name in expected:
                        yield _difference(quantity, name, place, tensor, share_of(numbers, name, expected[name]))


def share_of(numbers: RankNumbers, name: str, whole: Array) -> Array:
    """Return what a rank has of a whole parameter: its own experts, or everything."""
    if name not in numbers.experts:
        return whole
    return whole[numbers.first_expert : numbers.first_expert + len(numbers.steps[0].parameters[name])]


def _difference(quantity: str, name: str, place: tuple[int, int], found: Array, wanted: Array) -> Difference:
    step, rank = place
    if found.shape != wanted.shape:
        relative, ratio, median = math.inf, None, None
    else:
        scale = max(float(numpy.abs(wanted).max(initial=0.0)), _FLOOR)
        error = float(numpy.abs(found - wanted).max(initial=0.0))
        relative = error / scale if math.isfinite(error) else math.inf
        ratio, median = (None, None) if relative <= TOLERANCE else _ratio(found, wanted, scale)
    return Difference(quantity=quantity, name=name, step=step, rank=rank, relative=relative, ratio=ratio, median=median)


def _ratio(found: Array, wanted: Array, scale: float) -> tuple[float | None, float | None]:
    visible = numpy.abs(wanted) > _VISIBLE * scale
    if not visible.any():
        return None, None
    ratios = found[visible] / wanted[visible]
    median = float(numpy.median(ratios))
    off = float(numpy.abs(found - median * wanted).max())
    uniform = math.isfinite(off) and off <= _UNIFORM * scale * max(1.0, abs(median))
    return (median if uniform else None), (median if math.isfinite(median) else None)


def _missing(ranks: Sequence[RankNumbers], reference: RankNumbers) -> Iterator[Difference]:
    """Yield what no rank has, or only ranks that do not have all experts of it."""
    for step, wanted in enumerate(reference.steps):
        for quantity in TENSORS:
            held = _held(ranks, step, quantity)
            for name, tensor in getattr(wanted, quantity).items():
                if held.get(name, 0) < (len(tensor) if name in reference.experts else 1):
                    yield Difference(
                        quantity=quantity, name=name, step=step, rank=-1, relative=math.inf, ratio=None, median=None
                    )


def _held(ranks: Sequence[RankNumbers], step: int, quantity: str) -> dict[str, int]:
    """Return how many different experts of each expert parameter there are, 1 for other tensors."""
    found: dict[str, set[int]] = {}
    for numbers in ranks:
        steps: StepNumbers = numbers.steps[step]
        for name, tensor in getattr(steps, quantity).items():
            own = range(numbers.first_expert, numbers.first_expert + len(tensor)) if name in numbers.experts else (0,)
            found.setdefault(name, set()).update(own)
    return {name: len(parts) for name, parts in found.items()}


def groups_of(compared: Compared, quantity: str, names: Iterable[str]) -> list[Group]:
    """Group the differences of a quantity in the first step that has any by ratio, the largest group first.

    Args:
        compared: of one layout.
        quantity: which.
        names: all that the reference has of it.
    """
    by_ratio: dict[float | None, list[Difference]] = {}
    found = compared.of(quantity)
    for name in dict.fromkeys(one.name for one in found):
        of_name = [one for one in found if one.name == name]
        ratios = {_rounded(one.ratio) for one in of_name}
        by_ratio.setdefault(ratios.pop() if len(ratios) == 1 else None, []).extend(of_name)
    groups = [
        Group(
            quantity=quantity,
            patterns=tuple(cover({one.name for one in members}, names)),
            ratio=ratio,
            median=_median(members),
            relative=max(one.relative for one in members),
            ranks=tuple(sorted({one.rank for one in members if one.rank >= 0})),
            step=members[0].step,
        )
        for ratio, members in by_ratio.items()
    ]
    return sorted(groups, key=lambda group: -group.relative)


def _rounded(ratio: float | None) -> float | None:
    return None if ratio is None else float(f"{ratio:.6g}")


def _median(members: Iterable[Difference]) -> float | None:
    medians = [one.median for one in members if one.median is not None]
    return float(numpy.median(medians)) if medians else None


def cover(chosen: set[str], names: Iterable[str]) -> list[str]:
    """Return the fewest patterns that match the chosen names and no others; numbers of layers become ``*``."""
    everything = sorted(set(names) | chosen)
    return _cover("", everything, chosen)


def _cover(prefix: str, names: Sequence[str], chosen: set[str]) -> list[str]:
    inside = [name for name in names if name in chosen]
    if not inside:
        return []
    if len(inside) == len(names):
        whole = {_general(name) for name in names}
        return [whole.pop()] if len(whole) == 1 else [f"{prefix}*"]
    children: dict[str, list[str]] = {}
    depth = len(prefix.split("."))
    for name in names:
        parts = _general(name).split(".")
        children.setdefault(".".join(parts[:depth]), []).append(name)
    if len(children) == 1 and next(iter(children)) == _general(names[0]):
        more = [f"{len(inside) - _SHOWN} more like it"] if len(inside) > _SHOWN else []
        return [*inside[:_SHOWN], *more]
    return [pattern for child, below in children.items() for pattern in _cover(f"{child}.", below, chosen)]


def _general(name: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def in_words(relative: float) -> str:
    """Return a relative difference in four characters or so."""
    return "0" if relative == 0 else "inf" if math.isinf(relative) else f"{relative:.0e}"
