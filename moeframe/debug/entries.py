"""What a rank writes down of a collective, and what of it must agree between the ranks. Importable without torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

__all__ = ["Entry", "Site", "disagreement"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where a collective was issued.

    `line`: the innermost line of the project, and of its caller (``file.py:12 in f < other.py:3 in g``). `unit`: the
    innermost module that was running, or whose parameters move. `place`: step, micro-batch, layer and phase.
    """

    line: str
    unit: str
    place: str

    def __str__(self) -> str:
        """Return the site in words."""
        return f"{self.line} ({self.place}{f', module {self.unit}' if self.unit else ''})"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One collective of one rank.

    `op` with its root; `operands`: dtype and number of elements of each tensor that all ranks give alike;
    `shapes` as they were given. `send` and `receive`: rows to and from each rank of the group, empty where an operation
    has no splits. `rank` counts in the job, `sequence` from 1 in the group.
    """

    rank: int
    sequence: int
    group: str
    op: str
    operands: tuple[str, ...]
    shapes: tuple[str, ...]
    send: tuple[int, ...] = ()
    receive: tuple[int, ...] = ()
    site: Site

    def __str__(self) -> str:
        """Return the entry in one line."""
        splits = f", sends {list(self.send)}, receives {list(self.receive)}" if self.send or self.receive else ""
        return f"{self.op} {', '.join(self.shapes) or 'of nothing'}{splits} at {self.site}"

    def to_json(self) -> str:
        """Return one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Entry:
        """Read what `to_json` returned."""
        values = json.loads(text)
        site = Site(**values.pop("site"))
        lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return cls(**{**values, **lists}, site=site)


def disagreement(entries: Sequence[Entry]) -> str | None:
    """Say what is wrong between the entries of one collective, one from each rank of the group in order; None: nothing.

    The text names every site, and rank by rank which splits do not meet.
    """
    wrong = [*_unequal(entries), *_splits(entries)]
    if not wrong:
        return None
    first = entries[0]
    return (
        f"The ranks {[entry.rank for entry in entries]} disagree about collective {first.sequence} of group "
        f"{first.group}: {'; '.join(wrong)}.\n"
        + "\n".join(f"  {_ranks(ranks)}: {text}" for text, ranks in _alike(entries).items())
        + "\nAll ranks of a group must issue the same collectives, in the same order, from the same lines of code."
    )


def _unequal(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each property in which ranks differ."""
    properties: Mapping[str, list[object]] = {
        "operations": [entry.op for entry in entries],
        "dtypes or numbers of elements": [entry.operands for entry in entries],
        "call sites": [entry.site.line for entry in entries],
        "modules": [entry.site.unit for entry in entries],
        "places": [entry.site.place for entry in entries],
    }
    for name, values in properties.items():
        if any(value != values[0] for value in values):
            yield f"different {name}"


def _splits(entries: Sequence[Entry]) -> Iterator[str]:
    """Yield each pair of ranks of which one sends another number of rows than the other expects."""
    if any(len(entry.send) != len(entries) or len(entry.receive) != len(entries) for entry in entries):
        return
    for i, sender in enumerate(entries):
        for j, receiver in enumerate(entries):
            if sender.send[j] != receiver.receive[i]:
                yield (
                    f"rank {sender.rank} sends {sender.send[j]} rows to rank {receiver.rank}, "
                    f"rank {receiver.rank} expects {receiver.receive[i]}"
                )


def _alike(entries: Sequence[Entry]) -> dict[str, list[int]]:
    """Return the ranks of each text, in order."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        found.setdefault(str(entry), []).append(entry.rank)
    return found


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
