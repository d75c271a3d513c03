"""A small model in stages for schedules to run. It notes every forward and where gradients arise, by micro-batch.

B sequences, S tokens of a sequence, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.schedule import PhaseNode, Stage, StepResult
from moeframe.trace import Phase

__all__ = ["Event", "Log", "ToyStage", "micro_batch", "number_of"]

VOCABULARY = 64
WIDTH = 6
SEQUENCES = 2
TOKENS = 3
MTP_WEIGHT = 0.3

Kind = Literal["forward", "input", "weight"]


@dataclass(frozen=True, slots=True)
class Event:
    """A forward of a stage, or that the gradient of its input or of a weight arose, of one micro-batch."""

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        """Return F, I or W with stage and micro-batch, as plans are printed."""
        letter = {"forward": "F", "input": "I", "weight": "W"}[self.kind]
        return f"{self.stage}{letter}{self.micro_batch}"


@dataclass
class Log:
    """What happened on this rank, in order. Micro-batches without a target, which fill up evaluations, are left out."""

    events: list[Event] = field(default_factory=list)
    with_gradients: bool = False
    """Whether any forward ran with gradients enabled."""

    def of(self, kind: Kind) -> list[Event]:
        """Return the events of a kind, in order."""
        return [event for event in self.events if event.kind == kind]


def micro_batch(number: int, device: torch.device) -> MicroBatch:
    """Return micro-batch `number`, below `VOCABULARY`: its first token is the number, and one target does not count."""
    generator = torch.Generator().manual_seed(number)

    def ids() -> torch.Tensor:
        return torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS), generator=generator)

    input_ids_BS, targets_BS, ahead_BS = ids(), ids(), ids()
    input_ids_BS[0, 0] = number
    targets_BS[-1, -1] = IGNORED
    return MicroBatch(
        input_ids=input_ids_BS.to(device), targets=targets_BS.to(device), mtp_targets=(ahead_BS.to(device),)
    )


def number_of(batch: MicroBatch) -> int | None:
    """Return which micro-batch this is; None for one that only fills up."""
    return None if batch.targets.eq(IGNORED).all() else int(batch.input_ids[0, 0])


class _Noted(torch.autograd.Function):
    """Passes a tensor on, and calls when its gradient is there."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        ctx.call()
        return grad, None


class _Layer(nn.Module):
    """Two products with a residual around the second."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.attend = _weight(generator, WIDTH, WIDTH)
        self.experts = _weight(generator, WIDTH, WIDTH)


class _Part(nn.Module):
    """The parameters of a stage."""

    def __init__(self, index: int, num_stages: int, num_layers: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1000 + index)
        self.embedding = _weight(generator, VOCABULARY, WIDTH) if index == 0 else None
        self.layers = nn.ModuleList(_Layer(generator) for _ in range(num_layers))
        self.head = _weight(generator, WIDTH, VOCABULARY) if index == num_stages - 1 else None


def _weight(generator: torch.Generator, rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, columns, generator=generator, dtype=torch.float64) / 2)


@dataclass(kw_only=True)
class _Node(PhaseNode):
    phase: Phase
    layer: int
    run: Callable[..., torch.Tensor]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    frees: tuple[str, ...] = ()
    stream: Literal["compute", "communication"] = "compute"

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.run(*tensors),)


class ToyStage(Stage):
    """A stage of two layers, in float64.

    Args:
        index: of the stage.
        num_stages: of the whole model.
        num_tokens: what the loss is divided by: the targets that count in the whole step.
        device: where to compute.
        log: where to note.
    """

    def __init__(self, index: int, num_stages: int, *, num_tokens: int, device: torch.device, log: Log) -> None:
        self.index, self.num_stages = index, num_stages
        self.module = _Part(index, num_stages, num_layers=2).to(device)
        self.num_tokens, self._device, self.log = num_tokens, device, log
        self._reset()

    def _reset(self) -> None:
        self._ce_sum = torch.zeros((), dtype=torch.float64, device=self._device)
        self._mtp_sums = torch.zeros(1, dtype=torch.float64, device=self._device)

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor:
        """Return what the next stage reads, or logits."""
        if (hidden is None) != (self.index == 0):
            raise AssertionError(f"stage {self.index} was given {'nothing' if hidden is None else 'a hidden state'}")
        here = self._embed(micro_batch) if hidden is None else self._noted(hidden, "input", micro_batch)
        for layer in range(len(self.module.layers)):
            x_BSD = self._attend(layer, micro_batch, here)
            here = here + self._experts(layer, micro_batch, x_BSD)
        return self._logits(here) if self.module.head is not None else here

    def boundary(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return (B, S, D) in float64."""
        return torch.empty(*micro_batch.input_ids.shape, WIDTH, dtype=torch.float64, device="meta")

    def loss(self, output: torch.Tensor | tuple[torch.Tensor, ...], micro_batch: MicroBatch) -> torch.Tensor:
        """Return cross-entropies, of the next token and of the one after it."""
        assert isinstance(output, torch.Tensor)
        ce = _cross_entropy(output, micro_batch.targets)
        if number_of(micro_batch) is None:
            return ce
        ahead = _cross_entropy(output, micro_batch.mtp_targets[0])
        self._ce_sum += ce.detach()
        self._mtp_sums += ahead.detach()
        return (ce + MTP_WEIGHT * ahead) / self.num_tokens

    def result(self) -> StepResult:
        """Return the sums and begin anew."""
        found = StepResult(ce_sum=self._ce_sum, mtp_sums=self._mtp_sums)
        self._reset()
        return found

    def nodes(self, micro_batch: MicroBatch) -> Sequence[PhaseNode]:
        """Return the same phase by phase."""
        return [*self._nodes(micro_batch)]

    def _nodes(self, batch: MicroBatch) -> Iterator[_Node]:
        yield _Node(phase="embed", layer=-1, run=lambda: self._embed(batch), takes=(), gives=("0.in",))
        for layer in range(len(self.module.layers)):

            def attend(here: torch.Tensor, layer: int = layer) -> torch.Tensor:
                return self._attend(layer, batch, here)

            def experts(x_BSD: torch.Tensor, layer: int = layer) -> torch.Tensor:
                return self._experts(layer, batch, x_BSD)

            taken, x, rows, done = f"{layer}.in", f"{layer}.x", f"{layer}.rows", f"{layer}.done"
            yield _Node(phase="attend", layer=layer, run=attend, takes=(taken,), gives=(x,))
            yield _Node(
                phase="dispatch", layer=layer, run=torch.clone, takes=(x,), gives=(rows,), stream="communication"
            )
            yield _Node(phase="experts", layer=layer, run=experts, takes=(rows,), gives=(done,))
            yield _Node(
                phase="combine",
                layer=layer,
                run=torch.add,
                takes=(taken, done),
                gives=(f"{layer + 1}.in",),
                stream="communication",
            )
        last = f"{len(self.module.layers)}.in"
        yield _Node(
            phase="head",
            layer=-1,
            run=lambda here: self.loss(self._logits(here), batch),
            takes=(last,),
            gives=("loss",),
        )

    def _embed(self, batch: MicroBatch) -> torch.Tensor:
        assert self.module.embedding is not None
        return F.embedding(batch.input_ids, self.module.embedding)

    def _attend(self, layer: int, batch: MicroBatch, here: torch.Tensor) -> torch.Tensor:
        if layer == 0:
            self._note("forward", batch)
            self.log.with_gradients |= torch.is_grad_enabled()
        return (here @ self._weight(layer, "attend")).tanh()

    def _experts(self, layer: int, batch: MicroBatch, x_BSD: torch.Tensor) -> torch.Tensor:
        weight = self._weight(layer, "experts")
        return x_BSD @ (self._noted(weight, "weight", batch) if layer == 0 else weight)

    def _weight(self, layer: int, name: str) -> torch.Tensor:
        weight = getattr(self.module.layers[layer], name)
        assert isinstance(weight, torch.Tensor)
        return weight

    def _logits(self, here: torch.Tensor) -> torch.Tensor:
        assert self.module.head is not None
        return here @ self.module.head

    def _noted(self, tensor: torch.Tensor, kind: Kind, batch: MicroBatch) -> torch.Tensor:
        noted: torch.Tensor = _Noted.apply(tensor, lambda: self._note(kind, batch))  # type: ignore[no-untyped-call]
        return noted

    def _note(self, kind: Kind, batch: MicroBatch) -> None:
        number = number_of(batch)
        if number is not None:
            self.log.events.append(Event(kind, self.index, number))


def _cross_entropy(logits_BSV: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten(), ignore_index=IGNORED, reduction="sum")
