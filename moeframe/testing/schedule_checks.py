"""What a schedule must do, as functions that run on a rank. `schedule_suite` and `moeframe plugins test` call them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import distributed as dist

from moeframe.protocols.data import IGNORED
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import Schedule, ScheduleContext, ScheduleTraits, StepResult
from moeframe.schedule.actions import Action, Plan
from moeframe.schedule.placement import stages_of_rank
from moeframe.schedule.simulate import simulate
from moeframe.testing.device import rank_device
from moeframe.testing.schedule_toy import Event, Kind, Log, ToyStage, micro_batch

if TYPE_CHECKING:
    from moeframe.hooks.offers import ScheduleOffer

__all__ = [
    "Subject",
    "check_counts",
    "check_evaluation",
    "check_order",
    "check_plans",
    "check_steps",
    "sizes_of",
]

TOLERANCE = 1e-9
"""Largest allowed difference of a tensor, relative to its largest value."""
_MOST_RANKS = 6
_MOST_MICRO_BATCHES = 17


@dataclass(frozen=True, kw_only=True)
class Subject:
    """The schedule under test, as it travels to the ranks."""

    offer: ScheduleOffer
    options: Mapping[str, Any]
    device: str

    @property
    def typed(self) -> Any:
        """The options, as the offer takes them."""
        return self.offer.options(**self.options)

    @property
    def traits(self) -> ScheduleTraits:
        """Traits of the offer for these options."""
        return self.offer.traits(self.typed, Precision.of("float64"))

    def refusal(self, ranks: int, count: int) -> str | None:
        """Return what the offer says of a number of micro-batches."""
        return self.offer.legal_micro_batches(self.typed, ranks, count)

    def build(self, ranks: int, rank: int, count: int, device: torch.device) -> Schedule:
        """Return the schedule on a rank; without the process group when only its plans are wanted."""
        grouped = dist.is_initialized() and dist.get_world_size() == ranks
        context = ScheduleContext(
            pp_size=ranks,
            pp_rank=rank,
            pp_group=dist.group.WORLD if grouped else None,
            num_micro_batches=count,
            device=device,
        )
        return cast("Schedule", self.offer.build(self.typed, context))


def sizes_of(traits: ScheduleTraits, most: int) -> list[int]:
    """Return the numbers of pipeline ranks, up to `most`, that a schedule says it runs on."""
    return [ranks for ranks in range(traits.min_ranks, most + 1) if ranks == 1 or traits.pipelines]


def _require(condition: bool, message: str) -> None:  # noqa: FBT001  # an assertion that survives -O
    if not condition:
        raise AssertionError(message)


def check_plans(subject: Subject) -> None:
    """Every plan is whole, ends, and lies where the traits say: over numbers of ranks and of micro-batches."""
    traits, checked = subject.traits, 0
    for ranks in sizes_of(traits, _MOST_RANKS):
        stages = ranks * traits.stages_per_rank
        for count in range(1, _MOST_MICRO_BATCHES + 1):
            if subject.refusal(ranks, count) is not None:
                continue
            place = f"{count} micro-batches on {ranks} rank(s)"
            plan = subject.build(ranks, 0, count, torch.device("cpu")).plan(stages, count)
            shape = (plan.num_stages, plan.num_micro_batches, len(plan.ranks))
            _require(shape == (stages, count, ranks), f"{place}: the plan is of {shape}, not {(stages, count, ranks)}")
            simulate(plan)
            _require_placement(plan, traits, place)
            checked += 1
    _require(checked > 0, "legal_micro_batches refuses every number of micro-batches")


def _require_placement(plan: Plan, traits: ScheduleTraits, place: str) -> None:
    for rank, actions in enumerate(plan.ranks):
        wanted = stages_of_rank(rank, len(plan.ranks), traits.stages_per_rank, traits.placement)
        found = sorted({action.stage for action in actions})
        _require(
            found == list(wanted),
            f"{place}: rank {rank} runs stages {found}; stages_per_rank {traits.stages_per_rank} and placement "
            f"{traits.placement!r} say {list(wanted)}",
        )
        split = [str(action) for action in actions if action.kind == "backward_weight"]
        _require(
            not split or traits.splits_backward,
            f"{place}: rank {rank} runs weight gradients apart ({', '.join(split[:3])}), but splits_backward is false",
        )


def check_counts(subject: Subject) -> None:
    """A refused number of micro-batches is refused in a sentence that lists legal ones."""
    traits = subject.traits
    for ranks in sizes_of(traits, _MOST_RANKS):
        for count in range(1, _MOST_MICRO_BATCHES + 1):
            refusal = subject.refusal(ranks, count)
            if refusal is None:
                continue
            place = f"{count} micro-batches on {ranks} rank(s) are refused ({refusal!r})"
            _require(bool(refusal.strip()), f"{place} without a reason")
            listed = [int(number) for number in re.findall(r"\d+", refusal)]
            legal = [n for n in listed if n > 0 and n != count and subject.refusal(ranks, n) is None]
            _require(bool(legal), f"{place}, and no number in that sentence is legal")


class _Bench:
    """This rank's stages, and one process that runs all of them."""

    def __init__(self, subject: Subject, count: int) -> None:
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.device = rank_device(subject.device)
        self.traits = subject.traits
        self.num_stages = self.ranks * self.traits.stages_per_rank
        self.batches = [micro_batch(number, self.device) for number in range(count)]
        self.log = Log()
        mine = stages_of_rank(self.rank, self.ranks, self.traits.stages_per_rank, self.traits.placement)
        self.stages = [self._stage(index, self.log) for index in mine]
        self.schedule = subject.build(self.ranks, self.rank, count, self.device)
        self.place = f"{count} micro-batch(es) on {self.ranks} rank(s), rank {self.rank}"

    def _stage(self, index: int, log: Log) -> ToyStage:
        tokens = sum(int(batch.targets.ne(IGNORED).sum()) for batch in self.batches)
        return ToyStage(index, self.num_stages, num_tokens=tokens, device=self.device, log=log)

    @property
    def has_loss(self) -> bool:
        """Whether the last stage is here."""
        return self.stages[-1].index == self.num_stages - 1

    @cached_property
    def reference(self) -> tuple[dict[str, torch.Tensor], StepResult]:
        """Return gradients, by stage and name, and sums of one process."""
        stages = [self._stage(index, Log()) for index in range(self.num_stages)]
        for batch in self.batches:
            hidden: torch.Tensor | None = None
            for stage in stages:
                hidden = stage.forward(hidden, batch)
            assert hidden is not None
            stages[-1].loss(hidden, batch).backward()  # type: ignore[no-untyped-call]
        return _gradients(stages), stages[-1].result()

    def require_gradients(self, times: int, what: str) -> None:
        """Require this rank's gradients of `times` equal steps."""
        wanted, found = self.reference[0], _gradients(self.stages)
        for name, gradient in found.items():
            expected = times * wanted[name]
            difference = (gradient - expected).abs().max().item()
            scale = expected.abs().max().item()
            ratio = (gradient.norm() / expected.norm()).item()
            _require(
                difference <= TOLERANCE * scale,
                f"{self.place}: {what}: the gradient of {name} is x{ratio:.6g} of that of one process, off by "
                f"{difference:.3g} of {scale:.3g}",
            )

    def require_result(self, result: StepResult, what: str) -> None:
        """Require the sums of one process where the last stage is, zeros elsewhere."""
        wanted = self.reference[1]
        for name in ("ce_sum", "mtp_sums"):
            found, expected = getattr(result, name), getattr(wanted, name)
            expected = expected if self.has_loss else torch.zeros_like(expected)
            _require(
                found.shape == expected.shape and found.dtype in (torch.float32, torch.float64),
                f"{self.place}: {what}: {name} is {found.dtype} of shape {tuple(found.shape)}",
            )
            where = "this rank has the last stage" if self.has_loss else "the last stage is on another rank"
            near = torch.allclose(found.double(), expected, rtol=1e-6 if found.dtype == torch.float32 else TOLERANCE)
            _require(near, f"{self.place}: {what}: {name} is {found.tolist()}, not {expected.tolist()}: {where}")

    def require_forwards(self, times: int, what: str) -> None:
        """Require that every stage here ran every micro-batch so often."""
        ran = [str(event) for event in self.log.of("forward")]
        for stage in self.stages:
            for number in range(len(self.batches)):
                count = ran.count(str(Event("forward", stage.index, number)))
                _require(
                    count == times,
                    f"{self.place}: {what}: stage {stage.index} ran the forward of micro-batch {number} {count} "
                    f"time(s), not {times}: loads are counted in every forward",
                )


def _gradients(stages: Sequence[ToyStage]) -> dict[str, torch.Tensor]:
    found = {}
    for stage in stages:
        for name, parameter in stage.module.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, f"stage {stage.index}: {name} has no gradient"
            found[f"stage {stage.index}: {name}"] = gradient.detach()
    return found


def _some_legal(subject: Subject, ranks: int) -> list[int]:
    """Return the smallest legal number of micro-batches, an odd one beyond the number of stages, and a large one."""
    stages = ranks * subject.traits.stages_per_rank
    legal = [count for count in range(1, 3 * stages + 2) if subject.refusal(ranks, count) is None]
    odd = [count for count in legal if count % 2 and count > stages]
    return sorted({legal[0], *odd[:1], *[count for count in legal if count > 2 * stages][:1]})


def check_steps(subject: Subject) -> None:
    """Losses and gradients are those of one process, one forward for each micro-batch; a second step adds to the first.

    With few, odd and many micro-batches, as far as they are legal.
    """
    for number, count in enumerate(_some_legal(subject, dist.get_world_size())):
        bench = _Bench(subject, count)
        bench.require_result(bench.schedule.run_step(bench.stages, bench.batches), "a step")
        bench.require_gradients(1, "a step")
        bench.require_forwards(1, "a step")
        if number == 0:
            bench.require_result(bench.schedule.run_step(bench.stages, bench.batches), "a second step")
            bench.require_gradients(2, "two steps, gradients kept")
            bench.require_forwards(2, "two steps")


def check_evaluation(subject: Subject) -> None:
    """An evaluation takes any number of micro-batches, one forward each, without gradients; training goes on."""
    ranks = dist.get_world_size()
    for count in (1, subject.traits.stages_per_rank * ranks + 1):
        bench = _Bench(subject, count)
        bench.require_result(bench.schedule.run_evaluation(bench.stages, bench.batches), "an evaluation")
        bench.require_forwards(1, "an evaluation")
        _require(not bench.log.with_gradients, f"{bench.place}: an evaluation ran with gradients enabled")
        _require(not bench.log.of("weight"), f"{bench.place}: an evaluation ran a backward")
        held = [stage.index for stage in bench.stages for one in stage.module.parameters() if one.grad is not None]
        _require(not held, f"{bench.place}: an evaluation left gradients in stages {held}")
    bench = _Bench(subject, _some_legal(subject, ranks)[0])
    bench.schedule.run_evaluation(bench.stages, bench.batches[:1])
    bench.require_result(bench.schedule.run_step(bench.stages, bench.batches), "a step after an evaluation")
    bench.require_gradients(1, "a step after an evaluation")
    bench.schedule.run_evaluation(bench.stages, bench.batches)
    bench.require_gradients(1, "a step, then an evaluation")


def check_order(subject: Subject) -> None:
    """Forwards, gradients of inputs and of weights run in the order of the plan, and apart only where traits say so."""
    ranks = dist.get_world_size()
    for count in _some_legal(subject, ranks):
        bench = _Bench(subject, count)
        bench.schedule.run_step(bench.stages, bench.batches)
        plan = bench.schedule.plan(bench.num_stages, count).ranks[bench.rank]
        for kind in ("forward", "input", "weight"):
            ran, planned = bench.log.of(kind), _planned(plan, kind)
            _require(
                ran == planned,
                f"{bench.place}: {kind}s ran as {' '.join(map(str, ran))}, planned is {' '.join(map(str, planned))}",
            )
        if not bench.traits.splits_backward:
            _require_together(bench)


def _planned(actions: Sequence[Action], kind: Kind) -> list[Event]:
    """Return the events that a plan makes. The first stage has no gradient of its input."""
    sources = {
        "forward": ("forward",),
        "input": ("backward", "backward_input"),
        "weight": ("backward", "backward_weight"),
    }
    return [
        Event(kind, action.stage, action.micro_batch)
        for action in actions
        if action.kind in sources[kind] and not (kind == "input" and action.stage == 0)
    ]


def _require_together(bench: _Bench) -> None:
    """Require that both gradients of a micro-batch arise in one backward."""
    backwards = [event for event in bench.log.events if event.kind != "forward" and event.stage > 0]
    for first, second in zip(backwards[::2], backwards[1::2], strict=True):
        same = (first.stage, first.micro_batch) == (second.stage, second.micro_batch)
        _require(same, f"{bench.place}: {first} and {second} ran one after the other, but splits_backward is false")
