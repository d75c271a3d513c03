"""In which order each rank runs its actions, as torch.distributed.pipelining runs them. Importable without torch.

P ranks, v stages a rank, n micro-batches. Stages lie in a loop (stage s on rank s % P), in a V in the last two orders
(rank r holds the stages r and 2 P - 1 - r).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from moeframe.schedule.actions import Action, Kind, Plan

__all__ = ["Order", "dualpipev", "gpipe", "interleaved_1f1b", "one_f_one_b", "rounds", "zbv", "zero_bubble"]

Order = Callable[[int, int, int], Plan]
"""Makes a plan from P, v and n, which must be legal."""


def _plan(num_ranks: int, per_rank: int, n: int, rank_actions: Callable[[int], Iterator[Action]]) -> Plan:
    return Plan(
        num_stages=num_ranks * per_rank,
        num_micro_batches=n,
        ranks=tuple(tuple(rank_actions(rank)) for rank in range(num_ranks)),
    )


def gpipe(num_ranks: int, per_rank: int, n: int) -> Plan:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965)."""

    def actions(rank: int) -> Iterator[Action]:
        for kind in ("forward", "backward"):
            for micro_batch in range(n):
                yield Action(kind, rank, micro_batch)

    return _plan(num_ranks, per_rank, n, actions)


def one_f_one_b(num_ranks: int, per_rank: int, n: int) -> Plan:
    """As many forwards as there are stages left, then backward and forward in turn (arXiv 1806.03377)."""

    def actions(rank: int) -> Iterator[Action]:
        ahead = min(n, num_ranks - rank)
        for micro_batch in range(ahead):
            yield Action("forward", rank, micro_batch)
        for micro_batch in range(n):
            yield Action("backward", rank, micro_batch)
            if micro_batch + ahead < n:
                yield Action("forward", rank, micro_batch + ahead)

    return _plan(num_ranks, per_rank, n, actions)


def rounds(num_ranks: int, n: int) -> int:
    """Return into how many rounds of equal length interleaved orders cut n micro-batches; n must be a multiple."""
    return max(1, n // num_ranks)


class _Turns:
    """What a rank of an interleaved order runs in its k-th forward and k-th backward."""

    def __init__(self, rank: int, num_ranks: int, per_rank: int, n: int) -> None:
        self.rank, self.num_ranks, self.per_rank = rank, num_ranks, per_rank
        self.length = n // rounds(num_ranks, n)
        self.total = n * per_rank

    def ahead(self, hop: int) -> int:
        """Return how many forwards come before the first backward; `hop` more for each rank after this one."""
        return min(self.total, (self.per_rank - 1) * self.length + hop * (self.num_ranks - 1 - self.rank))

    def forward(self, k: int) -> Action:
        return self._action("forward", k, backwards=False)

    def backward(self, kind: Kind, k: int) -> Action:
        return self._action(kind, k, backwards=True)

    def _action(self, kind: Kind, k: int, *, backwards: bool) -> Action:
        """A round visits the rank's stages one by one, with all of its micro-batches each."""
        turn, place = divmod(k, self.length)
        number, local = divmod(turn, self.per_rank)
        local = self.per_rank - 1 - local if backwards else local
        return Action(kind, local * self.num_ranks + self.rank, number * self.length + place)


def interleaved_1f1b(num_ranks: int, per_rank: int, n: int) -> Plan:
    """1F1B with several stages a rank (Narayanan et al., arXiv 2104.04473, section 2.2)."""

    def actions(rank: int) -> Iterator[Action]:
        turns = _Turns(rank, num_ranks, per_rank, n)
        ahead = turns.ahead(hop=2)
        for k in range(ahead):
            yield turns.forward(k)
        for k in range(turns.total):
            if k + ahead < turns.total:
                yield turns.forward(k + ahead)
            yield turns.backward("backward", k)

    return _plan(num_ranks, per_rank, n, actions)


def zero_bubble(num_ranks: int, per_rank: int, n: int) -> Plan:
    """ZB1P, interleaved: weight gradients fill what 1F1B waits (Qi et al., arXiv 2401.10241).

    A rank's weight gradients run as many turns behind its input gradients as there are ranks before it.
    """

    def actions(rank: int) -> Iterator[Action]:
        turns = _Turns(rank, num_ranks, per_rank, n)
        ahead = turns.ahead(hop=1)
        for k in range(ahead):
            yield turns.forward(k)
        for k in range(turns.total):
            if k + ahead < turns.total:
                yield turns.forward(k + ahead)
            yield turns.backward("backward_input", k)
            if k >= rank:
                yield turns.backward("backward_weight", k - rank)
        for k in range(max(0, turns.total - rank), turns.total):
            yield turns.backward("backward_weight", k)

    return _plan(num_ranks, per_rank, n, actions)


Step = Callable[[], Iterator[Action]]


def _repeat(times: int, *steps: Step) -> Iterator[Action]:
    for _ in range(times):
        for step in steps:
            yield from step()


class _Chunk:
    """One of a rank's two stages in a V. Every kind of action counts its own micro-batches.

    Weight gradients that wait are kept in `waiting`, which the two may share, and run oldest first.
    """

    def __init__(self, stage: int, waiting: deque[Action]) -> None:
        self._stage = stage
        self._waiting = waiting
        self._forwards = self._backwards = 0

    def forward(self) -> Iterator[Action]:
        yield Action("forward", self._stage, self._forwards)
        self._forwards += 1

    def backward(self) -> Iterator[Action]:
        yield Action("backward", self._stage, self._backwards)
        self._backwards += 1

    def input(self) -> Iterator[Action]:
        yield Action("backward_input", self._stage, self._backwards)
        self._waiting.append(Action("backward_weight", self._stage, self._backwards))
        self._backwards += 1

    def weight(self) -> Iterator[Action]:
        if self._waiting:
            yield self._waiting.popleft()


def zbv(num_ranks: int, per_rank: int, n: int) -> Plan:
    """ZB-V (arXiv 2401.10241, section 6): no bubble if forward, input and weight gradients cost the same.

    Laid out for 2 P - 1 micro-batches at least; what is beyond n is left out.
    """
    full = max(2 * num_ranks - 1, n)

    def actions(rank: int) -> Iterator[Action]:
        down, up = _Chunk(rank, deque()), _Chunk(2 * num_ranks - 1 - rank, deque())
        after = num_ranks - 1 - rank
        yield from _repeat(2 * after + 1, down.forward)
        yield from _repeat(rank, up.forward, down.forward)
        yield from _repeat(after + 1, up.forward, up.input, up.weight)
        turn = (down.input, down.weight, up.forward, up.input, up.weight)
        yield from _repeat(full - num_ranks - after, down.forward, *turn)
        yield from _repeat(after, *turn)
        yield from _repeat(rank, down.input, up.input)
        yield from _repeat(after + 1, down.input, down.weight)
        yield from _repeat(rank, up.weight)
        yield from _repeat(rank, down.weight)

    return _plan(num_ranks, per_rank, n, lambda rank: (action for action in actions(rank) if action.micro_batch < n))


def dualpipev(num_ranks: int, per_rank: int, n: int) -> Plan:
    """DualPipe folded into a V (DeepSeek-V3 report, section 3.2.1; github.com/deepseek-ai/DualPipe).

    The pairs of a forward and a backward that DualPipe overlaps are given one after the other.
    """

    def actions(rank: int) -> Iterator[Action]:
        waiting: deque[Action] = deque()
        down, up = _Chunk(rank, waiting), _Chunk(2 * num_ranks - 1 - rank, waiting)
        after = num_ranks - 1 - rank
        yield from _repeat(2 * after, down.forward)
        yield from _repeat(rank + 1, down.forward, up.forward)
        yield from _repeat(after, up.input, up.weight, up.forward)
        yield from _repeat(n - num_ranks - after, down.forward, up.backward, up.forward, down.backward)
        yield from _repeat(after, up.backward, up.forward, down.backward)
        # In the second half of what is left the weight gradients wait; in even ranks it begins with the stage below.
        whole = (rank + 1) // 2
        yield from _repeat(whole, up.backward, down.backward)
        if rank % 2 == 0:
            yield from _repeat(1, up.backward, down.input)
        yield from _repeat(rank // 2 + rank % 2, up.input, down.input)
        yield from _repeat(after, down.weight, down.input)
        yield from _repeat(rank + 1, down.weight)

    return _plan(num_ranks, per_rank, n, actions)
