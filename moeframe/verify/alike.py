"""Which failures of a conformance kit have one cause, so that its author reads each once, the plainest first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from moeframe.config.misfit import counted, one_of
from moeframe.verify.outcome import Outcome

__all__ = ["Cause", "Causes"]

_RANK: Final = re.compile(r"rank \d+: ")
_MOST_NAMES: Final = 4
_ASSERTION: Final = "AssertionError: "
_PLACE: Final = re.compile(r"(?:.*?\b)?rank \d+[^:]*: ")
"""What the checks say before what is wrong: ``ragged, call 0, rank 1: output: ...``."""
_DETAIL: Final = re.compile(r"\([^()]*\)")
_VARYING: Final = (
    (re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"), "#"),
    (re.compile(r"#/\w+(?: or #/\w+)*"), "#"),
    (re.compile(r"#(?:, #)+"), "#"),
)
"""What differs between alike failures, as what stands in parentheses does, and what takes its place."""


@dataclass(kw_only=True)
class Cause:
    """Failures that say the same of different inputs, in the order of the kit."""

    number: int
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def message(self) -> str:
        """What is wrong, in the words of the first of them."""
        return _RANK.sub("", self.outcomes[0].message, count=1).removeprefix(_ASSERTION)

    def lines(self, good_on: Collection[int]) -> list[str]:
        """Return the cause as one reads it; `good_on`: the numbers of ranks on which some check was good."""
        first, sizes = self.outcomes[0], sorted({one.ranks for one in self.outcomes})
        count, names = len(self.outcomes), list(dict.fromkeys(one.check for one in self.outcomes))
        many = f"{count} checks, the first is" if count > 1 else "1 check:"
        others = [f"`{name}`" for name in names[1:]]
        also = f" (then {', '.join(others)})" if 0 < len(others) < _MOST_NAMES else ""
        only = f"; on {one_of(sizes)} ranks only, never on 1" if count > 1 and 1 not in sizes and 1 in good_on else ""
        where = f"`{first.check}` on {counted(first.ranks, 'rank')}{also}{only}"
        told = f"{self.number}. {many} {where}. {self.message}"
        return [told, *([f"   raised at {first.where}"] if first.where else [])]


class Causes:
    """Failures by their causes."""

    def __init__(self) -> None:
        """Start with none."""
        self._found: dict[tuple[str, str], Cause] = {}

    def add(self, failure: Outcome) -> Cause:
        """Return the cause of a failure, which joins those that are alike."""
        kind, _, rest = _RANK.sub("", failure.message, count=1).partition(": ")
        place = _PLACE.match(rest)
        text = f"{kind}: {rest[place.end() :] if place else rest}"
        while (shorter := _DETAIL.sub("", text)) != text:  # they may be nested
            text = shorter
        for pattern, stands_for in _VARYING:
            text = pattern.sub(stands_for, text)
        cause = self._found.setdefault((text, failure.where), Cause(number=len(self._found) + 1))
        cause.outcomes.append(failure)
        return cause

    def __iter__(self) -> Iterator[Cause]:
        """Yield the causes in the order of their first failures: a kit begins with the plainest input."""
        yield from self._found.values()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)
