"""One decoder layer as four phases: attend, dispatch, experts, combine.

`attend` and `experts` hold the parameters and are modules, the units of sharding. `dispatch` and `combine` hold none.
B sequences, S positions, T = B x S tokens, D width, R received rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVarTuple

import torch
from torch import nn

from moeframe.model.attention import LatentAttention
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import LayerCounter
from moeframe.model.experts import DenseExperts, MixtureExperts
from moeframe.model.phases import run_phase
from moeframe.model.recompute import NOTHING, Decisions, Recompute, recomputed
from moeframe.model.rope import Rotary
from moeframe.model.router import Router
from moeframe.model.step_state import StepState
from moeframe.protocols.compute import Compute
from moeframe.protocols.dispatcher import Dispatched, Dispatcher, Layout

__all__ = ["Attend", "Attended", "Block", "Parts", "Received", "recompute_blocks"]

Outputs = TypeVarTuple("Outputs")


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What every block of a model part is built from and shares."""

    config: DeepSeekV3Config
    compute: Compute
    dispatcher: Dispatcher
    rotary: Rotary
    state: StepState
    num_local_experts: int
    router_dtype: torch.dtype


@dataclass(frozen=True, kw_only=True)
class Attended:
    """What `attend` hands on: the residual stream and its norm (B, S, D); in a MoE layer also the routing.

    That is expert ids and gates (T, K), and the layout made for them unless the caller makes it later.
    """

    residual_BSD: torch.Tensor
    x_BSD: torch.Tensor
    gates_TK: torch.Tensor | None = None
    ids_TK: torch.Tensor | None = None
    layout: Layout | None = None


@dataclass(frozen=True, kw_only=True)
class Received:
    """What `dispatch` hands on: rows (R, D) and gates (R,) of this rank's experts, and what `combine` needs."""

    rows_RD: torch.Tensor
    gates_R: torch.Tensor
    dispatched: Dispatched


class Attend(nn.Module):
    """Norm, attention, residual, norm, and the router in a MoE layer."""

    def __init__(self, parts: Parts, counter: LayerCounter | None) -> None:
        super().__init__()
        config, compute = parts.config, parts.compute
        self.norm = compute.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.attention = LatentAttention(config, compute, parts.rotary)
        self.ffn_norm = compute.rms_norm(config.hidden_size, config.rms_norm_eps)
        self.router: Router | None = None
        if counter is not None:
            self.router = Router(config, dtype=parts.router_dtype, state=parts.state, counter=counter)

    def forward(
        self,
        x_BSD: torch.Tensor,
        mask: torch.Tensor | None,
        valid_BS: torch.Tensor | None,
        forced_BSK: torch.Tensor | None,
        decisions: Decisions | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Return (residual, its norm), and in a MoE layer (..., expert ids (T, K), gates (T, K)); no views."""
        residual_BSD = x_BSD + self.attention(self.norm(x_BSD), mask)
        normed_BSD = self.ffn_norm(residual_BSD)
        if self.router is None:
            return residual_BSD, normed_BSD
        ids_TK, gates_TK = self.router(normed_BSD, valid_BS, forced_BSK, decisions)
        return residual_BSD, normed_BSD, ids_TK, gates_TK


class Block(nn.Module):
    """A decoder layer. Calling it runs the four phases in order; a schedule may run them one by one.

    Args:
        parts: shared parts of the model.
        layer: global layer index; MTP modules follow the decoder's layers.
        counter: of a MoE layer; None: a dense layer.
    """

    def __init__(self, parts: Parts, *, layer: int, counter: LayerCounter | None) -> None:
        super().__init__()
        self.layer = layer
        self.hands_over_counts = True
        """Give the counts of rows to `experts` on the host too, where the dispatcher knows them there."""
        self.recompute = NOTHING
        """What runs again in the backward; all of the block when it is called as a whole, else phase by phase."""
        self._dispatcher = parts.dispatcher
        self.attend = Attend(parts, counter)
        self.experts: DenseExperts | MixtureExperts
        if counter is None:
            self.experts = DenseExperts(parts.config, parts.compute)
        else:
            self.experts = MixtureExperts(parts.config, parts.compute, num_local_experts=parts.num_local_experts)

    def forward(
        self,
        x_BSD: torch.Tensor,
        mask: torch.Tensor | None = None,
        valid_BS: torch.Tensor | None = None,
        forced_BSK: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the residual stream (B, S, D) after this layer."""
        decisions = Decisions()

        def until_combine(
            x_BSD: torch.Tensor,
        ) -> tuple[Attended, Received | None, torch.Tensor | None, torch.Tensor | None]:
            attended = self.run_attend(x_BSD, mask, valid_BS, forced_BSK, decisions)
            received = self.run_dispatch(attended)
            return attended, received, *self.run_experts(attended, received)

        if self.recompute.block:
            return self.run_combine(*recomputed(f"layer {self.layer}", until_combine, x_BSD))
        return self.run_combine(*until_combine(x_BSD))

    def replace_dispatcher(self, replace: Callable[[Dispatcher], Dispatcher]) -> None:
        """Work with another dispatcher from now on, made from the present one."""
        self._dispatcher = replace(self._dispatcher)

    @property
    def has_shared_expert(self) -> bool:
        """Whether a shared expert works on this rank's own tokens."""
        return isinstance(self.experts, MixtureExperts) and self.experts.shared is not None

    def _run(
        self, phase: Literal["attend", "experts"], function: Callable[..., tuple[*Outputs]], *inputs: Any
    ) -> tuple[*Outputs]:
        """Run a phase, as a region that is recomputed when it shall be one of its own."""
        run = partial(run_phase, phase, self.layer, function)
        if phase in self.recompute.phases:
            return recomputed(f"layer {self.layer}, {phase}", run, *inputs)
        return run(*inputs)

    def run_attend(
        self,
        x_BSD: torch.Tensor,
        mask: torch.Tensor | None,
        valid_BS: torch.Tensor | None,
        forced_BSK: torch.Tensor | None,
        decisions: Decisions | None = None,
        *,
        lay_out: bool = True,
    ) -> Attended:
        """Run `attend`, and in a MoE layer the dispatcher's `layout`, unless `run_layout` shall do that later.

        Recomputing takes routing and layout from `decisions`, and so exchanges no counts again.
        """
        made = Decisions() if decisions is None else decisions

        def attend(
            x_BSD: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, Layout | None]:
            residual_BSD, normed_BSD, *routing = self.attend(x_BSD, mask, valid_BS, forced_BSK, made)
            if not routing:
                return residual_BSD, normed_BSD, None, None, None
            ids_TK, gates_TK = routing
            layout = made.once("layout", lambda: self._dispatcher.layout(ids_TK)) if lay_out else None
            return residual_BSD, normed_BSD, gates_TK, ids_TK, layout

        residual_BSD, normed_BSD, gates_TK, ids_TK, layout = self._run("attend", attend, x_BSD)
        return Attended(residual_BSD=residual_BSD, x_BSD=normed_BSD, gates_TK=gates_TK, ids_TK=ids_TK, layout=layout)

    def run_layout(self, ids_TK: torch.Tensor) -> Layout:
        """Run the dispatcher's `layout` apart from `attend`, to which it belongs."""
        (layout,) = run_phase("attend", self.layer, lambda: (self._dispatcher.layout(ids_TK),))
        return layout

    def run_dispatch(self, attended: Attended) -> Received | None:
        """Send tokens to their experts; None in a dense layer, which has nothing to send."""
        layout, gates_TK = attended.layout, attended.gates_TK
        if layout is None or gates_TK is None:
            return None

        def dispatch(x_BSD: torch.Tensor, gates_TK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Dispatched]:
            dispatched = self._dispatcher.dispatch(x_BSD.flatten(0, 1), gates_TK, layout)
            return dispatched.rows_RD, dispatched.gates_R, dispatched

        rows_RD, gates_R, dispatched = run_phase("dispatch", self.layer, dispatch, attended.x_BSD, gates_TK)
        return Received(rows_RD=rows_RD, gates_R=gates_R, dispatched=dispatched)

    def run_experts(
        self, attended: Attended, received: Received | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the routed rows (R, D), None in a dense layer, and the shared expert's or the MLP's (B, S, D)."""
        if received is None:
            (out_BSD,) = self._run("experts", self.experts, attended.x_BSD)
            return None, out_BSD
        dispatched = received.dispatched
        rows_RD, shared_BSD = self._run(
            "experts",
            self.experts,
            attended.x_BSD,
            received.rows_RD,
            received.gates_R,
            dispatched.counts_E,
            dispatched.counts_host if self.hands_over_counts else None,
        )
        return rows_RD, shared_BSD

    def run_combine(
        self,
        attended: Attended,
        received: Received | None,
        rows_RD: torch.Tensor | None,
        own_BSD: torch.Tensor | None,
    ) -> torch.Tensor:
        """Bring expert outputs home and add everything to the residual stream."""

        def combine(rows_RD: torch.Tensor | None, received: Received | None) -> tuple[torch.Tensor | None]:
            if rows_RD is None or received is None:
                return (None,)
            return (self._dispatcher.combine(rows_RD, received.dispatched),)

        (routed_TD,) = run_phase("combine", self.layer, combine, rows_RD, received)
        out_BSD = attended.residual_BSD
        if own_BSD is not None:
            out_BSD = out_BSD + own_BSD
        if routed_TD is not None:
            out_BSD = out_BSD + routed_TD.view_as(out_BSD)
        return out_BSD


def recompute_blocks(model: nn.Module, recompute: Recompute) -> None:
    """Have every block of a model part run again what `recompute` says, in place."""
    for block in model.modules():
        if isinstance(block, Block):
            block.recompute = recompute
