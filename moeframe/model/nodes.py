"""The whole model as a list of phases, each to be run apart from the others, forward and backward.

Nodes call the same methods of a block as its forward does. Names of the tensors between them begin with the layer:
``3.rows_RD``. Nothing here runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch

from moeframe.errors import ContractError
from moeframe.model.attention import attention_mask
from moeframe.model.block import Attended, Block, Received
from moeframe.model.mtp import MTPModule, valid_ahead
from moeframe.model.phases import run_phase
from moeframe.model.router import require_expert_ids
from moeframe.protocols.compute import ComputeTraits
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.dispatcher import Dispatched, DispatcherTraits
from moeframe.protocols.schedule import PhaseNode
from moeframe.trace import Phase

if TYPE_CHECKING:
    from moeframe.model.deepseek_v3 import DeepSeekV3

__all__ = ["Kept", "phase_nodes"]

_Tensors = tuple[torch.Tensor, ...]
_Loss = Callable[[_Tensors, MicroBatch], torch.Tensor]
_Norm = Callable[[torch.Tensor], torch.Tensor]

_EMBEDDED = "embedded"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """Which tensors between phases the backward of a dispatcher or of compute modules reads."""

    dispatch_input: bool = True
    expert_input: bool = True
    expert_output: bool = True
    """That of routed experts, which is the input of combine."""
    own_output: bool = True
    """That of the shared expert or of the dense MLP."""

    @classmethod
    def by(cls, dispatcher: DispatcherTraits, compute: ComputeTraits) -> Kept:
        """Return what the traits of both say. `dispatch` and `experts` read the output of a norm."""
        return cls(
            dispatch_input=dispatcher.keeps_dispatch_input or compute.saves_norm_output,
            expert_input=dispatcher.keeps_expert_input or compute.saves_expert_input,
            expert_output=dispatcher.keeps_combine_input or compute.saves_expert_output,
            own_output=compute.saves_expert_output,
        )


@dataclass(kw_only=True)
class _Node(PhaseNode):
    phase: Phase
    layer: int
    run: Callable[..., _Tensors]
    takes: tuple[str, ...]
    gives: tuple[str, ...]
    frees: tuple[str, ...] = ()
    stream: Literal["compute", "communication"] = "compute"

    def __call__(self, *tensors: torch.Tensor) -> _Tensors:
        return self.run(*tensors)


def phase_nodes(model: DeepSeekV3, micro_batch: MicroBatch, loss: _Loss, kept: Kept) -> Sequence[PhaseNode]:
    """Return the nodes of one micro-batch, from token ids to loss.

    Args:
        model: the whole model.
        micro_batch: its tensors are read when nodes run.
        loss: of logits, one tensor for each depth.
        kept: by the traits of the backends; what the model itself reads is worked out here.

    Raises:
        ContractError: the model is a part of one, or its blocks are recomputed as a whole.
    """
    if model.embedding is None or model.head is None:
        raise ContractError("A pipeline stage cannot be run phase by phase; only the whole model can.")
    if any(isinstance(module, Block) and module.recompute.block for module in model.modules()):
        raise ContractError("A block that is recomputed as a whole has one backward; its phases cannot run apart.")
    if micro_batch.expert_ids is not None:
        require_expert_ids(micro_batch.expert_ids, model.config)
    return [*_Nodes(model, micro_batch, kept).all(loss)]


class _Nodes:
    """Makes the nodes of one micro-batch."""

    def __init__(self, model: DeepSeekV3, micro_batch: MicroBatch, kept: Kept) -> None:
        self._model = model
        self._batch = micro_batch
        self._kept = kept
        self._mask = attention_mask(micro_batch.valid, micro_batch.document_ids)
        # A router that computes in the dtype of its input saves it; else it saves a copy.
        self._router_reads_input = model.precision.high == model.precision.compute

    def all(self, loss: _Loss) -> Iterator[_Node]:
        yield _Node(phase="embed", layer=-1, run=self._embed, takes=(), gives=(_EMBEDDED,))
        before = _EMBEDDED
        for block in self._model.blocks.values():
            assert isinstance(block, Block)
            attend = partial(self._attend, block, self._batch.valid)
            yield from self._layer(block, attend, takes=(before,))
            before = _out(block)
        states: list[str] = []
        leave: _Norm = self._model.leave
        for module in self._model.mtp.values():
            assert isinstance(module, MTPModule)
            state = f"{module.block.layer}.state_BSD"
            attend = partial(self._attend_ahead, module, leave)
            yield from self._layer(module.block, attend, takes=(before, _EMBEDDED), also_gives=(state,))
            states.append(state)
            before, leave = _out(module.block), module.leave
        run = partial(self._head, leave, loss)
        yield _Node(phase="head", layer=-1, run=run, takes=(before, *states), gives=("loss",))

    def _embed(self) -> _Tensors:
        embedding = self._model.embedding
        assert embedding is not None
        return run_phase("embed", -1, lambda ids: (embedding(ids),), self._batch.input_ids)

    def _head(self, leave: _Norm, loss: _Loss, out_BSD: torch.Tensor, *states: torch.Tensor) -> _Tensors:
        head = self._model.head
        assert head is not None
        logits = run_phase("head", -1, head, *states, leave(out_BSD))
        return (loss(logits, self._batch),)

    def _layer(
        self, block: Block, attend: Callable[..., _Tensors], *, takes: tuple[str, ...], also_gives: tuple[str, ...] = ()
    ) -> Iterator[_Node]:
        named = partial("{}.{}".format, block.layer)
        residual, x, own = named("residual_BSD"), named("x_BSD"), named("own_BSD")
        routing = (named("gates_TK"), named("ids_TK"))
        arrived = (named("rows_RD"), named("gates_R"), named("counts_E"))
        routed = named("routed_RD")
        attended = (residual, x, *(routing if block.attend.router is not None else ()), *also_gives)
        yield _Node(phase="attend", layer=block.layer, run=attend, takes=takes, gives=attended)
        if block.attend.router is None:
            run = partial(_dense, block)
            yield _Node(phase="experts", layer=block.layer, run=run, takes=(residual, x), gives=(_out(block),))
            return
        flight = _Flight(block)
        shared = (own,) if block.has_shared_expert else ()
        yield _Node(
            phase="dispatch",
            layer=block.layer,
            stream="communication",
            run=flight.dispatch,
            takes=(x, *routing),
            gives=arrived,
        )
        yield _Node(
            phase="experts",
            layer=block.layer,
            run=flight.experts,
            takes=(x, *arrived),
            gives=(routed, *shared),
            frees=self._free_after_experts(block, x, arrived[0]),
        )
        yield _Node(
            phase="combine",
            layer=block.layer,
            stream="communication",
            run=flight.combine,
            takes=(residual, routed, *shared),
            gives=(_out(block),),
            frees=(
                *((routed,) if not self._kept.expert_output else ()),
                *(shared if not self._kept.own_output else ()),
            ),
        )

    def _free_after_experts(self, block: Block, x: str, rows: str) -> tuple[str, ...]:
        """Return which inputs of `experts` nobody reads again; a phase that is recomputed reads all of its inputs."""
        if "experts" in block.recompute.phases:
            return ()
        x_is_read = self._kept.dispatch_input or self._router_reads_input or block.has_shared_expert
        return (*(() if x_is_read else (x,)), *(() if self._kept.expert_input else (rows,)))

    def _attend(self, block: Block, valid_BS: torch.Tensor | None, x_BSD: torch.Tensor) -> _Tensors:
        attended = block.run_attend(x_BSD, self._mask, valid_BS, self._batch.expert_ids, lay_out=False)
        routing = (attended.gates_TK, attended.ids_TK)
        return attended.residual_BSD, attended.x_BSD, *(tensor for tensor in routing if tensor is not None)

    def _attend_ahead(
        self,
        module: MTPModule,
        leave: _Norm,
        out_BSD: torch.Tensor,
        embedded_BSD: torch.Tensor,
    ) -> _Tensors:
        """Run the end of the module before, the beginning of this one, and its `attend`."""
        state_BSD = leave(out_BSD)
        batch = self._batch
        valid_BS = valid_ahead(batch.valid, module.depth, state_BSD, batch.document_ids)
        return *self._attend(module.block, valid_BS, module.enter(state_BSD, embedded_BSD)), state_BSD


def _out(block: Block) -> str:
    return f"{block.layer}.out_BSD"


def _dense(block: Block, residual_BSD: torch.Tensor, x_BSD: torch.Tensor) -> _Tensors:
    attended = Attended(residual_BSD=residual_BSD, x_BSD=x_BSD)
    return (block.run_combine(attended, None, *block.run_experts(attended, None)),)


class _Flight:
    """Tokens of one layer away from home; holds what `dispatch` returned until `combine` has run."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._dispatched: Dispatched | None = None

    def dispatch(self, x_BSD: torch.Tensor, gates_TK: torch.Tensor, ids_TK: torch.Tensor) -> _Tensors:
        # The layout waits for the device; made here, it does so while the next phases of others are under way.
        layout = self._block.run_layout(ids_TK)
        attended = Attended(residual_BSD=x_BSD, x_BSD=x_BSD, gates_TK=gates_TK, layout=layout)
        received = self._block.run_dispatch(attended)
        assert received is not None
        self._dispatched = received.dispatched
        return received.rows_RD, received.gates_R, received.dispatched.counts_E

    def experts(
        self, x_BSD: torch.Tensor, rows_RD: torch.Tensor, gates_R: torch.Tensor, counts_E: torch.Tensor
    ) -> _Tensors:
        assert self._dispatched is not None
        # Only its shape is asked for from here on, and whether it needs a gradient.
        self._dispatched = replace(self._dispatched, rows_RD=rows_RD, gates_R=gates_R, counts_E=counts_E)
        received = Received(rows_RD=rows_RD, gates_R=gates_R, dispatched=self._dispatched)
        routed_RD, own_BSD = self._block.run_experts(Attended(residual_BSD=x_BSD, x_BSD=x_BSD), received)
        assert routed_RD is not None
        return (routed_RD,) if own_BSD is None else (routed_RD, own_BSD)

    def combine(
        self, residual_BSD: torch.Tensor, routed_RD: torch.Tensor, own_BSD: torch.Tensor | None = None
    ) -> _Tensors:
        assert self._dispatched is not None
        dispatched, self._dispatched = self._dispatched, None
        received = Received(rows_RD=dispatched.rows_RD, gates_R=dispatched.gates_R, dispatched=dispatched)
        attended = Attended(residual_BSD=residual_BSD, x_BSD=residual_BSD)
        return (self._block.run_combine(attended, received, routed_RD, own_BSD),)
