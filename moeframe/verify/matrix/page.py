"""The matrix as a page to read: a table for each dispatcher. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from moeframe.verify.matrix.cells import AXES, Key
from moeframe.verify.matrix.record import Entry

__all__ = ["render"]


def render(entries: Sequence[Entry], base: str) -> str:
    """Return the page of a whole matrix, whose cells lie over the recipe `base`."""
    by_key = {entry.key: entry for entry in entries}
    axes = {name: list(dict.fromkeys(key[place] for key in by_key)) for place, name in enumerate(AXES)}
    notes = _Notes(by_key)
    tables = "\n".join(line for dispatcher in axes["dispatcher"] for line in _table(dispatcher, axes, by_key, notes))
    return f"{_head(entries, base)}\n{tables}\n{notes.text()}"


def _head(entries: Sequence[Entry], base: str) -> str:
    counts = Counter(entry.status for entry in entries)
    dates = sorted({entry.date for entry in entries if entry.status == "proved"})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    refused = counts["refused"]
    return f"""\
# What is proved

{len(entries)} combinations of dispatcher, sharding, schedule and recompute: {counts["proved"]} proved ({when}),
{refused} refused on a machine without GPUs, where CI runs, before a process starts. A cell stands for recompute
none, full and selective where it does not tell them apart.

**Proved**: two optimizer steps in float64 on two to four processes leave behind what one process does: losses, loads,
every gradient, the clip norm, clipped gradients, correction biases and every weight, to 1e-9 of the largest value of
each tensor. The model is DeepSeek-V3 at toy size, with MTP, balance loss and grouped routing. Proofs on GPUs say what
they ran on.

Each combination runs in the layout of at most four processes in which most of it is at work: pipelines with `pp` 2,
hybrid shardings with `dp_replicate` 2, then `ep` 2, then more data ranks. Where pipeline and replicas fill the four,
`ep` is 1; `nox -s sweeps` proves those with `ep` 2 on eight.

**Refused**, with a reason that says what a backend runs on: on GPUs the same combination is let through, and is without
proof unless its cell says on which machine and when it was proved. Any other reason holds everywhere.

[matrix.json](matrix.json) has for each its overrides, its reason and its date. To see one for yourself, on a CPU:
`moeframe verify {base} OVERRIDES`; refused ones are refused by `moeframe check` too. On two GPUs: `nox -s gpu`.

<!-- Made by docs/make_matrix.py from matrix.json; `nox -s matrix` proves all of it anew. -->
"""


class _Notes:
    """Reasons of refusals, numbered as they are first met; and of proofs that no CPU can repeat."""

    def __init__(self, entries: Mapping[Key, Entry]) -> None:
        self._entries = entries
        self._numbers: dict[str, int] = {}

    def mark(self, entry: Entry) -> str:
        """Return the reference to the reason of an entry."""
        return f"[{self._numbers.setdefault(entry.reason, len(self._numbers) + 1)}]"

    def text(self) -> str:
        """Return the list of what was referred to."""
        if not self._numbers:
            return ""
        lines = [f"{number}. {reason}" for reason, number in self._numbers.items()]
        return "\n".join(["## Reasons", "", *lines, ""])


def _table(
    dispatcher: str, axes: Mapping[str, Sequence[str]], entries: Mapping[Key, Entry], notes: _Notes
) -> Iterator[str]:
    """Yield a section: shardings downwards, schedules to the right."""
    yield f"## {dispatcher}"
    yield ""
    yield f"| | {' | '.join(f'`{name}`' for name in axes['schedule'])} |"
    yield f"|---|{'---|' * len(axes['schedule'])}"
    for sharding in axes["sharding"]:
        cells = [
            _cell([(mode, entries[dispatcher, sharding, schedule, mode]) for mode in axes["recompute"]], notes)
            for schedule in axes["schedule"]
        ]
        yield f"| `{sharding}` | {' | '.join(cells)} |"
    yield ""


def _cell(modes: Sequence[tuple[str, Entry]], notes: _Notes) -> str:
    """Return the words of a cell: one where recomputing makes no difference."""
    words = [(mode, _word(entry, notes)) for mode, entry in modes]
    if len({word for _, word in words}) == 1:
        return words[0][1]
    return ", ".join(f"{mode}: {word}" for mode, word in words)


def _word(entry: Entry, notes: _Notes) -> str:
    if entry.status == "refused":
        return f"refused {notes.mark(entry)}"
    return f"proved {notes.mark(entry)}" if entry.reason.startswith("On ") else "proved"
