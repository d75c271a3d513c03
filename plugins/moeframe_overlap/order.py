"""In which order the phases of two micro-batches run: one forward, the other backward. Importable without torch.

Layer j of the forward is paired with the j-th layer of the backward, which comes from the other end of the model. Per
pair, communication above, computation below::

    combine backward | dispatch forward -> dispatch backward        | combine forward
    attend forward   | experts backward -> weights -> experts forward | attend backward

The order is the same on every rank: it depends on the list of phases only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Final, Literal, Protocol, TypeAlias

__all__ = ["PAIR", "Direction", "Turn", "backward_alone", "forward_alone", "paired"]

Direction: TypeAlias = Literal["forward", "backward"]

Turn: TypeAlias = tuple[Direction, int]
"""Which node runs next, by its place in the list, and in which direction."""

PAIR: Final[tuple[tuple[str, Direction], ...]] = (
    ("combine", "backward"),
    ("attend", "forward"),
    # The layout of `dispatch` keeps the host waiting for `attend`: give the device its next work first.
    ("experts", "backward"),
    ("dispatch", "forward"),
    ("dispatch", "backward"),
    ("experts", "forward"),
    ("combine", "forward"),
    ("attend", "backward"),
)


class Phase(Protocol):
    """What the order depends on."""

    @property
    def phase(self) -> str:
        """Its name."""

    @property
    def layer(self) -> int:
        """Its layer; -1 outside of layers."""


def forward_alone(nodes: Sequence[Phase]) -> Iterator[Turn]:
    """Yield the forward of a micro-batch that has no partner."""
    for place in range(len(nodes)):
        yield "forward", place


def backward_alone(nodes: Sequence[Phase]) -> Iterator[Turn]:
    """Yield the backward of a micro-batch that has no partner."""
    for place in reversed(range(len(nodes))):
        yield "backward", place


def paired(nodes: Sequence[Phase]) -> Iterator[Turn]:
    """Yield the forward of a micro-batch, interleaved with the backward of the one before it.

    Both have the same phases. The backward begins with what lies behind the layers and ends with what lies before them;
    so does the forward, the other way round.
    """
    before, layers, behind = _cut(nodes)
    for place in reversed(behind):
        yield "backward", place
    for place in before:
        yield "forward", place
    for ahead, back in zip_longest(layers, reversed(layers), fillvalue=()):
        yield from _pair(nodes, {"forward": ahead, "backward": back})
    for place in reversed(before):
        yield "backward", place
    for place in behind:
        yield "forward", place


def _cut(nodes: Sequence[Phase]) -> tuple[Sequence[int], Sequence[Sequence[int]], Sequence[int]]:
    """Return the places of phases before the layers, of each layer, and behind the layers."""
    runs = [(layer, [*places]) for layer, places in groupby(range(len(nodes)), lambda place: nodes[place].layer)]
    inside = [index for index, (layer, _) in enumerate(runs) if layer >= 0]
    first, last = (inside[0], inside[-1] + 1) if inside else (len(runs), len(runs))
    return (
        [place for _, places in runs[:first] for place in places],
        [places for _, places in runs[first:last]],
        [place for _, places in runs[last:] for place in places],
    )


def _pair(nodes: Sequence[Phase], layers: dict[Direction, Sequence[int]]) -> Iterator[Turn]:
    """Yield one layer forward and one backward."""
    left = {direction: {nodes[place].phase: place for place in places} for direction, places in layers.items()}
    for phase, direction in PAIR:
        place = left[direction].pop(phase, None)
        if place is not None:
            yield direction, place
    unknown = [phase for phases in left.values() for phase in phases]
    assert not unknown, f"phases without a turn in a pair: {unknown}"
