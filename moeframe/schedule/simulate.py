"""Run a plan on a clock, without torch: does it end, how long do ranks wait, how much do they hold?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from moeframe.errors import ContractError
from moeframe.schedule.actions import Action, Kind, Plan

__all__ = ["Costs", "Simulation", "Timed", "plan_problems", "simulate"]


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one micro-batch costs in one stage, in any unit of time; a whole backward costs both of its parts."""

    forward: int = 1
    backward_input: int = 1
    backward_weight: int = 1

    def of(self, kind: Kind) -> int:
        """Return the cost of an action."""
        if kind == "backward":
            return self.backward_input + self.backward_weight
        cost = getattr(self, kind)
        assert isinstance(cost, int)
        return cost


@dataclass(frozen=True, slots=True)
class Timed:
    """An action, and when it runs."""

    action: Action
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """What became of a plan. Everything by rank is in the order of the ranks."""

    plan: Plan
    costs: Costs
    ranks: tuple[tuple[Timed, ...], ...]
    peak_live: tuple[int, ...]
    """Most micro-batches x stages whose activations a rank holds at a time: from the start of a forward to the end of
    its backward, or of its weight gradients when they run apart."""

    @property
    def length(self) -> int:
        """When the last action ends."""
        return max((rank[-1].end for rank in self.ranks if rank), default=0)

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which they wait."""
        busy = sum(timed.end - timed.start for rank in self.ranks for timed in rank)
        return 1.0 - busy / (len(self.ranks) * self.length) if self.length else 0.0

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What was assumed, in sentences."""
        costs = self.costs
        return (
            f"In every stage a forward costs {costs.forward}, the gradient of a stage's input {costs.backward_input} "
            f"and that of its weights {costs.backward_weight}; a whole backward costs both.",
            "Sending costs nothing and nobody waits for a send; embedding, head and loss cost nothing.",
            "A rank holds activations from the start of a forward to the end of its last gradient.",
        )

    def __str__(self) -> str:
        """Return the result and its assumptions, a line each."""
        plan = self.plan
        return "\n".join(
            (
                f"{plan.num_stages} stages on {len(plan.ranks)} ranks, {plan.num_micro_batches} micro-batches: "
                f"bubble {self.bubble:.4f}, length {self.length}",
                f"peak live activations by rank: {', '.join(map(str, self.peak_live))}",
                *self.assumptions,
            )
        )


def simulate(plan: Plan, costs: Costs | None = None) -> Simulation:
    """Run every action as soon as its rank and its inputs are there.

    Raises:
        ContractError: the plan is wrong (`plan_problems`) or comes to a standstill; says where.
    """
    if problems := plan_problems(plan):
        raise ContractError(f"The plan is wrong: {'; '.join(problems)}.")
    run = _Run(plan, Costs() if costs is None else costs)
    while run.advance():
        pass
    run.require_done()
    return Simulation(
        plan=plan,
        costs=run.costs,
        ranks=tuple(tuple(timed) for timed in run.timed),
        peak_live=tuple(_peak_live(timed) for timed in run.timed),
    )


def plan_problems(plan: Plan) -> list[str]:
    """Return what is wrong with a plan, whatever the timing: actions that are missing, doubled or out of order."""
    problems: list[str] = []
    home: dict[int, int] = {}
    done: dict[tuple[int, int], list[Kind]] = {}
    for rank, actions in enumerate(plan.ranks):
        for action in actions:
            if not (0 <= action.stage < plan.num_stages and 0 <= action.micro_batch < plan.num_micro_batches):
                problems.append(
                    f"rank {rank} runs {action}, but there are {plan.num_stages} stages and "
                    f"{plan.num_micro_batches} micro-batches"
                )
            elif home.setdefault(action.stage, rank) != rank:
                problems.append(f"rank {rank} runs {action}, but stage {action.stage} is on rank {home[action.stage]}")
            else:
                done.setdefault((action.stage, action.micro_batch), []).append(action.kind)
    legal: tuple[list[Kind], ...] = (["forward", "backward"], ["forward", "backward_input", "backward_weight"])
    for stage in range(plan.num_stages):
        for micro_batch in range(plan.num_micro_batches):
            kinds = done.get((stage, micro_batch), [])
            if kinds not in legal:
                problems.append(
                    f"stage {stage} runs {', then '.join(kinds) or 'nothing'} of micro-batch {micro_batch}; right is "
                    "forward, then backward, or forward, then backward_input, then backward_weight"
                )
    return problems


def _inputs(action: Action, plan: Plan) -> Iterator[Action]:
    """Yield what another stage must have sent; a gradient comes from either kind of backward."""
    if action.kind == "forward" and action.stage > 0:
        yield Action("forward", action.stage - 1, action.micro_batch)
    elif action.kind in ("backward", "backward_input") and action.stage < plan.num_stages - 1:
        yield Action("backward", action.stage + 1, action.micro_batch)


@dataclass
class _Run:
    plan: Plan
    costs: Costs
    timed: list[list[Timed]] = field(default_factory=list)
    ready: dict[Action, int] = field(default_factory=dict)
    """When a stage's output or its input's gradient (as "backward") is there."""

    def __post_init__(self) -> None:
        self.timed = [[] for _ in self.plan.ranks]

    def advance(self) -> bool:
        """Run what can run on every rank; say whether anything could."""
        before = len(self.ready)
        for rank in range(len(self.plan.ranks)):
            while (action := self._next(rank)) is not None and not self._missing(action):
                self._perform(rank, action)
        return len(self.ready) > before

    def _next(self, rank: int) -> Action | None:
        actions, done = self.plan.ranks[rank], len(self.timed[rank])
        return actions[done] if done < len(actions) else None

    def _missing(self, action: Action) -> list[Action]:
        return [wanted for wanted in _inputs(action, self.plan) if wanted not in self.ready]

    def _perform(self, rank: int, action: Action) -> None:
        free = self.timed[rank][-1].end if self.timed[rank] else 0
        start = max([free, *(self.ready[wanted] for wanted in _inputs(action, self.plan))])
        end = start + self.costs.of(action.kind)
        self.timed[rank].append(Timed(action, start, end))
        gives = Action("backward", action.stage, action.micro_batch) if action.kind == "backward_input" else action
        self.ready[gives] = end

    def require_done(self) -> None:
        """Raise when ranks are left with actions that wait for each other."""
        waiting = []
        for rank in range(len(self.plan.ranks)):
            if (action := self._next(rank)) is not None:
                needs = " and ".join(
                    f"the {wanted.kind} of micro-batch {wanted.micro_batch} in stage {wanted.stage}"
                    for wanted in self._missing(action)
                )
                waiting.append(f"rank {rank} at {action} waits for {needs}")
        if waiting:
            raise ContractError(f"The plan comes to a standstill: {'; '.join(waiting)}.")


def _peak_live(timed: list[Timed]) -> int:
    live = peak = 0
    for one in timed:
        live += one.action.kind == "forward"
        peak = max(peak, live)
        live -= one.action.kind in ("backward", "backward_weight")
    return peak
