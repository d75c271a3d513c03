"""What ranks wait for: their last collectives, held against each other."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from moeframe.watch.view import Launched, RankView

__all__ = ["Mismatch", "mismatches", "waits"]

_EXCHANGE = "all_to_all"
_ALIKE = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "reduce_scatter",
    "_reduce_scatter_base",
)
"""Operations whose inputs have one size on all ranks."""
_EP: Final = "ep"
_PP: Final = "pp"
"""What the groups of the dispatcher and of a pipeline are called, after the axes of the mesh."""
_PEER = re.compile(r"(?:->|<-)\s*(\d+)")


class Mismatch:
    """A collective that the ranks of a group give differently. `order`: other operations, not other arguments."""

    def __init__(self, entries: Mapping[int, Launched], *, order: bool, how: str) -> None:
        self.entries = dict(entries)
        self.order = order
        self.how = how

    def __str__(self) -> str:
        """Return it in words, rank by rank."""
        first = next(iter(self.entries.values()))
        each = "; ".join(f"rank {rank}: {entry}" for rank, entry in self.entries.items())
        return f"collective {first.sequence} of {first.what or 'group ' + first.group} has {self.how}: {each}"

    @property
    def odd(self) -> tuple[int, ...]:
        """The ranks that differ from most."""
        by_text: dict[str, list[int]] = defaultdict(list)
        for rank, entry in self.entries.items():
            by_text[f"{entry.op} {entry.dtypes} {entry.sizes}"].append(rank)
        groups = sorted(by_text.values(), key=len)
        alone = len(groups) > 1 and len(groups[-1]) > len(groups[-2])
        return tuple(sorted(rank for ranks in (groups[:-1] if alone else groups) for rank in ranks))


def mismatches(views: Sequence[RankView]) -> Iterator[Mismatch]:
    """Yield every collective of those known that its ranks give differently, oldest first in each group."""
    by_number: dict[tuple[str, int], dict[int, Launched]] = defaultdict(dict)
    for view in views:
        for entry in view.collectives or ():
            if not entry.p2p:
                by_number[entry.group, entry.sequence][view.rank] = entry
    members = {group.name: group.ranks for view in views for group in view.groups}
    for (group, _), entries in sorted(by_number.items()):
        if len(entries) < 2:
            continue
        how = _difference(entries, everyone=set(entries) == set(members.get(group, ())))
        if how is not None:
            yield Mismatch(dict(sorted(entries.items())), order=how == _OTHER, how=how)


_OTHER = "different operations"


def _difference(entries: Mapping[int, Launched], *, everyone: bool) -> str | None:
    ops = {entry.op for entry in entries.values()}
    if len(ops) > 1:
        return _OTHER
    op = ops.pop()
    if op not in (*_ALIKE, _EXCHANGE):
        return None  # with a root, which alone gives or gets all
    exchange = op == _EXCHANGE
    if len({entry.dtypes for entry in entries.values()}) > 1:
        return "different dtypes"
    if len({tuple(size[exchange:] for size in entry.sizes) for entry in entries.values()}) > 1:
        return "different shapes"
    sent = sum(math.prod(size) for entry in entries.values() for size in entry.sizes)
    received = sum(math.prod(size) for entry in entries.values() for size in entry.results)
    if exchange and everyone and sent != received:
        return f"splits that do not meet ({sent} elements are sent, {received} expected)"
    return None


def waits(views: Sequence[RankView]) -> dict[int, dict[int, Launched]]:
    """Return for every rank that waits in a collective or message the ranks that have not come, and to what.

    A rank whose collective all have come to waits for nobody: it maps to nothing.
    """
    known = {view.rank: view for view in views}
    found: dict[int, dict[int, Launched]] = {}
    for view in views:
        if view.state == "finished":
            continue
        absent: dict[int, Launched] = {}
        for entry in view.reached or _presumed(view, known):
            for other in _peers(entry, view):
                if other in known and other != view.rank and not _has_come(known[other], entry):
                    absent[other] = entry
        absent |= dict.fromkeys(_late(view, known), _OWN_EXCHANGE)
        absent |= dict.fromkeys(_neighbours(view, known), _MESSAGE)
        if absent or view.reached:
            found[view.rank] = absent
    return found


def _unknown(op: str) -> Launched:
    """Return what torch's recorder does not know."""
    return Launched(group="", what="", op=op, sequence=0, p2p=False, sizes=(), results=(), dtypes=(), over=False)


_OWN_EXCHANGE: Final = _unknown("the dispatcher's own exchange")
_MESSAGE: Final = _unknown("a message of the pipeline")


def _members(view: RankView, axis: str) -> tuple[int, ...]:
    return next((group.ranks for group in view.groups if group.what == axis), ())


def _neighbours(view: RankView, known: Mapping[int, RankView]) -> Iterator[int]:
    """Yield the stages that a rank between two phases of a step waits for; of gloo's messages there is no record."""
    if view.inside or view.reached or view.place.micro_batch < 0 or any(entry.p2p for entry in view.collectives or ()):
        return
    for rank in _members(view, _PP):
        if rank in known and known[rank].state != "finished" and known[rank].inside:
            yield rank


def _late(view: RankView, known: Mapping[int, RankView]) -> Iterator[int]:
    """Yield the ranks that have not come as far as one that is in an exchange which torch does not know."""
    if not view.in_dispatcher:
        return
    for rank in _members(view, _EP):
        other = known.get(rank)
        if other is None or other.state == "finished" or other.in_dispatcher:
            continue
        if other.progress < view.progress:
            yield rank


def _presumed(view: RankView, known: Mapping[int, RankView]) -> Iterator[Launched]:
    """Yield the last collective of each group where others are behind, for a rank that could not look by itself.

    What deaf ranks have launched is not known: their pulses are of earlier moments, each of another.
    """
    if view.collectives is not None or view.deaf:
        return
    for group in view.groups:
        others = [known[rank] for rank in group.ranks if rank in known]
        counts = [other.launched(group.name) for other in others if not other.deaf]
        if group.launched and any(count is not None and count < group.launched for count in counts):
            yield Launched(
                group=group.name,
                what=group.what,
                op="a collective",
                sequence=group.launched,
                p2p=False,
                sizes=(),
                results=(),
                dtypes=(),
                over=False,
            )


def _peers(entry: Launched, view: RankView) -> tuple[int, ...]:
    ranks = next((group.ranks for group in view.groups if group.name == entry.group), ())
    if not entry.p2p:
        return ranks
    peer = _PEER.search(entry.op)
    return (ranks[int(peer[1])],) if peer and int(peer[1]) < len(ranks) else ()


def _has_come(other: RankView, entry: Launched) -> bool:
    if entry.p2p:
        return any(theirs.p2p and theirs.group == entry.group for theirs in other.reached)
    same = (entry.group, entry.sequence, False)
    if any(other.queued(theirs) and (theirs.group, theirs.sequence, theirs.p2p) == same for theirs in other.pending):
        return False
    launched = other.launched(entry.group)
    return launched is not None and launched >= entry.sequence
