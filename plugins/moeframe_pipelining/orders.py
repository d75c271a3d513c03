"""In which order each rank runs its actions, as torch.distributed.pipelining runs them. Importable without torch.

P ranks, v stages a rank, n micro-batches. Stages lie in a loop (stage s on rank s % P), in a V in the last two orders
(rank r holds the stages r and 2 P - 1 - r).
"""

from __future__ import annotations

from collections import Counter, deque
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


class _Chunk:
    """One of a rank's two stages in a V; counts the micro-batches of each kind."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.done: Counter[str] = Counter()

    def next(self, kind: Kind) -> Action:
        action = Action(kind, self.stage, self.done[kind])
        self.done[kind] += 1
        return action


def zbv(num_ranks: int, per_rank: int, n: int) -> Plan:
    """ZB-V (arXiv 2401.10241, section 6): no bubble if forward, input and weight gradients cost the same.

    Laid out for 2 P - 1 micro-batches at least; what is beyond n is left out.
    """
    full = max(2 * num_ranks - 1, n)

    def actions(rank: int) -> Iterator[Action]:
        down, up = _Chunk(rank), _Chunk(2 * num_ranks - 1 - rank)

        def whole_backward(chunk: _Chunk) -> Iterator[Action]:
            yield chunk.next("backward_input")
            yield chunk.next("backward_weight")

        for _ in range(2 * (num_ranks - rank) - 1):
            yield down.next("forward")
        for _ in range(rank):
            yield up.next("forward")
            yield down.next("forward")
        for _ in range(num_ranks - rank):
            yield up.next("forward")
            yield from whole_backward(up)
        while up.done["forward"] < full:
            if down.done["forward"] < full:
                yield down.next("forward")
            yield from whole_backward(down)
            yield up.next("forward")
            yield from whole_backward(up)
        for _ in range(rank):
            yield down.next("backward_input")
            yield up.next("backward_input")
        for _ in range(num_ranks - rank):
            yield from whole_backward(down)
        for chunk in (up, down):
            while chunk.done["backward_weight"] < chunk.done["backward_input"]:
                yield chunk.next("backward_weight")

    return _plan(
        num_ranks, per_rank, n, lambda rank: (action for action in actions(rank) if action.micro_batch < n)
    )


class _PairOfChunks:
    """A rank of DualPipeV: its two stages, and the weight gradients that wait, oldest first."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.down, self.up = _Chunk(rank), _Chunk(2 * num_ranks - 1 - rank)
        self._waiting: deque[Action] = deque()

    def forward(self, chunk: _Chunk) -> Iterator[Action]:
        yield chunk.next("forward")

    def backward(self, chunk: _Chunk, *, whole: bool = True) -> Iterator[Action]:
        action = chunk.next("backward")
        if whole:
            yield action
            return
        yield Action("backward_input", action.stage, action.micro_batch)
        self._waiting.append(Action("backward_weight", action.stage, action.micro_batch))

    def weight(self) -> Iterator[Action]:
        if self._waiting:
            yield self._waiting.popleft()


def dualpipev(num_ranks: int, per_rank: int, n: int) -> Plan:
    """DualPipe folded into a V (DeepSeek-V3 report, section 3.2.1; github.com/deepseek-ai/DualPipe).

    The pairs of a forward and a backward that DualPipe overlaps are given one after the other.
    """

    def actions(rank: int) -> Iterator[Action]:
        after = num_ranks - rank - 1
        pair = _PairOfChunks(rank, num_ranks)
        down, up = pair.down, pair.up
        for _ in range(2 * after):
            yield from pair.forward(down)
        for _ in range(rank + 1):
            yield from pair.forward(down)
            yield from pair.forward(up)
        for _ in range(after):
            yield from pair.backward(up, whole=False)
            yield from pair.weight()
            yield from pair.forward(up)
        for _ in range(n - 2 * num_ranks + rank + 1):
            yield from pair.forward(down)
            yield from pair.backward(up)
            yield from pair.forward(up)
            yield from pair.backward(down)
        for _ in range(after):
            yield from pair.backward(up)
            yield from pair.forward(up)
            yield from pair.backward(down)
        # From the middle of the descent on, weight gradients wait; odd ranks start half a turn earlier.
        middle = (rank + 1) // 2
        for turn in range(rank + 1):
            yield from pair.backward(up, whole=turn < middle or (turn == middle and rank % 2 == 0))
            yield from pair.backward(down, whole=turn < middle)
        for _ in range(after):
            yield from pair.weight()
            yield from pair.backward(down, whole=False)
        for _ in range(rank + 1):
            yield from pair.weight()

    return _plan(num_ranks, per_rank, n, actions)
