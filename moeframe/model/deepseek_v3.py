"""DeepSeek-V3 as a whole or as one pipeline stage. B sequences, S positions, D width, V vocabulary, K experts used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from moeframe.errors import ContractError
from moeframe.model.attention import attention_mask
from moeframe.model.block import Block, Parts
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.counters import Counters, LayerCounter, stack_counters
from moeframe.model.layers import Embedding, Head
from moeframe.model.mtp import MTPModule
from moeframe.model.nodes import Kept, phase_nodes
from moeframe.model.phases import run_phase
from moeframe.model.rope import Rotary
from moeframe.model.router import Router, require_expert_ids
from moeframe.model.step_state import StepState
from moeframe.protocols.compute import Compute
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.dispatcher import Dispatcher
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import PhaseNode, Stage, StepResult
from moeframe.protocols.sharding import ShardedModel

__all__ = ["Counters", "DeepSeekV3", "ModelOutput", "ModelPart", "ModelStage"]


@dataclass(frozen=True, kw_only=True)
class ModelPart:
    """Which consecutive part of the model a pipeline stage holds."""

    layers: range
    """Global indices of its decoder layers."""
    has_embedding: bool
    """It starts with token ids."""
    has_head: bool
    """It ends with final norm, MTP modules and head."""


class ModelOutput(NamedTuple):
    """What the whole model returns: a tuple, so that every tensor in it is visible to hooks."""

    logits: torch.Tensor
    """(B, S, V): position i predicts token i + 1."""
    mtp_logits: tuple[torch.Tensor, ...] | None
    """One (B, S, V) an MTP depth d = 1..D: position i predicts token i + d + 1; its last d positions mean nothing."""


class DeepSeekV3(nn.Module):
    """The model, or the consecutive part of it that one pipeline stage holds.

    Parameters are made on the device of the current `torch.device` context and hold nothing: build on the meta device
    and let `moeframe.model.plan` fill them. Names count globally (``blocks.7`` is layer 7 in any stage), experts by
    their position on this rank.

    Args:
        config: hyper-parameters.
        compute: builds linears, norms, experts; computes attention.
        dispatcher: serves every MoE layer.
        precision: dtypes of parameters and activations.
        ep_size: ranks that share the experts of a layer.
        ep_rank: this rank among them; it holds the contiguous range of experts that the dispatcher protocol says.
        part: what to hold of the model; None: all.
        step_state: to share with the other parts of this rank; None: one of its own.

    Raises:
        ContractError: the hyper-parameters or the parts do not fit together.
    """

    def __init__(
        self,
        config: DeepSeekV3Config,
        compute: Compute,
        dispatcher: Dispatcher,
        *,
        precision: Precision,
        ep_size: int = 1,
        ep_rank: int = 0,
        part: ModelPart | None = None,
        step_state: StepState | None = None,
    ) -> None:
        super().__init__()
        if problems := config.problems():
            raise ContractError("; ".join(f"{key}: {message} {fix}" for key, message, fix in problems))
        if config.n_routed_experts % ep_size:
            raise ContractError(f"{config.n_routed_experts} experts cannot be shared equally by {ep_size} ep ranks.")
        if part is None:
            part = ModelPart(layers=range(config.num_hidden_layers), has_embedding=True, has_head=True)
        self.config = config
        self.precision = precision
        self.step_state = StepState() if step_state is None else step_state
        self.num_local_experts = config.n_routed_experts // ep_size
        self.first_expert = ep_rank * self.num_local_experts
        high = precision.dtype("high")
        self._counters = tuple(LayerCounter(config.n_routed_experts, high) for _ in range(config.num_moe_layers))
        parts = Parts(
            config=config,
            compute=compute,
            dispatcher=dispatcher,
            rotary=Rotary(config),
            state=self.step_state,
            num_local_experts=self.num_local_experts,
            router_dtype=high,
        )
        dtype, width = precision.dtype("parameters"), config.hidden_size
        self.embedding: Embedding | None = None
        if part.has_embedding:
            compute_dtype = precision.dtype("compute")
            self.embedding = Embedding(config.vocab_size, width, dtype=dtype, compute_dtype=compute_dtype)
        self.blocks = nn.ModuleDict()
        for layer in part.layers:
            self.blocks[str(layer)] = Block(parts, layer=layer, counter=self._counter(layer))
        self.norm: nn.Module | None = None
        self.head: Head | None = None
        self.mtp = nn.ModuleDict()
        if part.has_head:
            self.norm = compute.rms_norm(width, config.rms_norm_eps)
            for depth in range(config.num_nextn_predict_layers):
                counter = self._counter(config.num_hidden_layers + depth)
                assert counter is not None
                self.mtp[str(depth)] = MTPModule(parts, depth=depth + 1, counter=counter)
            self.head = Head(width, config.vocab_size, dtype=dtype)

    def _counter(self, layer: int) -> LayerCounter | None:
        first = self.config.first_k_dense_replace
        return None if layer < first else self._counters[layer - first]

    def forward(
        self,
        inputs: torch.Tensor,
        *,
        valid: torch.Tensor | None = None,
        expert_ids: torch.Tensor | None = None,
        document_ids: torch.Tensor | None = None,
    ) -> ModelOutput | torch.Tensor:
        """Run the part.

        Args:
            inputs: (B, S) int64 token ids if the part has the embedding, else what the part before returned.
            valid: (B, S) bool, false for padding; None: no padding.
            expert_ids: (B, S, K) int64 in place of the routers' choices; None: the routers choose.
            document_ids: (B, S) int64; attention and MTP modules look at tokens of equal id only; None: at all.

        Returns:
            `ModelOutput` if the part has the head, else (B, S, D) for the next part: the residual stream. In a model
            with MTP modules it is (B, S, 2 D): behind it travel the token embeddings, which those modules read.
        """
        if expert_ids is not None:
            require_expert_ids(expert_ids, self.config)
        width = self.config.hidden_size
        if self.embedding is not None:
            embedding = self.embedding
            (embedded,) = run_phase("embed", -1, lambda ids: (embedding(ids),), inputs)
            # A node of its own: gradients of the first layer add up before those of MTP modules join, traced or not.
            hidden = embedded.view_as(embedded)
        else:
            hidden, embedded = inputs[..., :width], inputs[..., width:]
        mask = attention_mask(valid, document_ids)
        for block in self.blocks.values():
            hidden = block(hidden, mask, valid, expert_ids)
        if self.head is None or self.norm is None:
            return torch.cat([hidden, embedded], dim=-1) if self.config.num_nextn_predict_layers else hidden
        hidden = self.norm(hidden)
        states = [hidden]
        for module in self.mtp.values():
            states.append(module(states[-1], embedded, valid, expert_ids, document_ids))
        logits, *mtp_logits = run_phase("head", -1, self.head, *states)
        return ModelOutput(logits=logits, mtp_logits=tuple(mtp_logits) or None)

    def leave(self, hidden: torch.Tensor) -> torch.Tensor:
        """Run the final norm, for a schedule that runs the phases itself; of the part with the head."""
        assert self.norm is not None
        normed: torch.Tensor = self.norm(hidden)
        return normed

    def take_counters(self) -> Counters:
        """Return what this rank counted since the last call, for all MoE layers of the model, and start at zero."""
        return stack_counters(self._counters, self._device(), self.config.n_routed_experts)

    def update_expert_bias(self, tokens_per_expert: torch.Tensor) -> None:
        """Move the correction bias of this part's routers one step towards balance.

        Args:
            tokens_per_expert: (MoE layers of the model, experts) int64, summed over all ranks and micro-batches of
                the step; rows as in `Counters`.
        """
        first = self.config.first_k_dense_replace
        for block in self._all_blocks():
            router = block.attend.router
            if isinstance(router, Router):
                router.take_bias_step(tokens_per_expert[block.layer - first])

    def _all_blocks(self) -> list[Block]:
        return [module for module in self.modules() if isinstance(module, Block)]

    def _device(self) -> torch.device:
        return next(self.parameters()).device


class ModelStage(Stage):
    """A model part as a schedule runs it: forward, loss, and the sums of a step.

    Args:
        model: the part, already sharded where it shall be.
        index: which stage of the model it is.
        num_stages: stages of the model.
        kept: which tensors between phases some backward reads; by default all.
        sharded: of which the part is (a piece); None: of nothing.
    """

    def __init__(
        self,
        model: DeepSeekV3,
        *,
        index: int = 0,
        num_stages: int = 1,
        kept: Kept | None = None,
        sharded: ShardedModel | None = None,
    ) -> None:
        self.module: nn.Module = model
        self._model = model
        self._kept = Kept() if kept is None else kept
        self._sharded = sharded
        self.index = index
        self.num_stages = num_stages
        self._config = model.config
        self._state = model.step_state
        self._high = model.precision.dtype("high")
        self._compute = model.precision.dtype("compute")
        self._sums: torch.Tensor | None = None

    def forward(self, hidden: torch.Tensor | None, micro_batch: MicroBatch) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run the part; the last stage returns (logits, logits of each MTP depth)."""
        inputs = micro_batch.input_ids if hidden is None else hidden
        output = self.module(
            inputs,
            valid=micro_batch.valid,
            expert_ids=micro_batch.expert_ids,
            document_ids=micro_batch.document_ids,
        )
        if isinstance(output, ModelOutput):
            return (output.logits, *(output.mtp_logits or ()))
        assert isinstance(output, torch.Tensor)
        return output

    def nodes(self, micro_batch: MicroBatch) -> Sequence[PhaseNode]:
        """Return the phases of the part that is the whole model, from token ids to loss.

        Raises:
            ContractError: the part is not the whole model, or blocks are recomputed as a whole.
        """
        return phase_nodes(self._model, micro_batch, self.loss, self._kept)

    def hold_gradients(self) -> None:
        """Pass it on to the sharding strategy."""
        if self._sharded is not None:
            self._sharded.hold_gradients()

    def boundary(self, micro_batch: MicroBatch) -> torch.Tensor:
        """Return the shape and dtype of the residual stream, with the token embeddings behind it for MTP modules."""
        width = self._config.hidden_size * (2 if self._config.num_nextn_predict_layers else 1)
        return torch.empty(*micro_batch.input_ids.shape, width, dtype=self._compute, device="meta")

    def loss(self, output: torch.Tensor | tuple[torch.Tensor, ...], micro_batch: MicroBatch) -> torch.Tensor:
        """Return this micro-batch's share of ``CE + lambda / D * sum over depths of CE_d`` of the global batch.

        Each cross-entropy is a mean over its own targets of the global batch. A depth without a target adds nothing.

        Raises:
            ContractError: the step's token counts were not set, or targets are missing.
        """
        state, depths = self._state, self._config.num_nextn_predict_layers
        if state.loss_tokens is None or len(state.mtp_tokens) != depths:
            raise ContractError(
                f"The step's token counts must be set before its first loss (StepState.begin), with one count for each "
                f"of {depths} MTP depths; got {len(state.mtp_tokens)}."
            )
        if isinstance(output, torch.Tensor) or len(micro_batch.mtp_targets) != depths:
            raise ContractError(f"A loss needs the last stage's logits and targets of {depths} MTP depths.")
        targets = (micro_batch.targets, *micro_batch.mtp_targets)
        sums = [self._cross_entropy(*pair) for pair in zip(output, targets, strict=True)]
        counted = torch.stack(sums).detach()
        self._sums = counted if self._sums is None else self._sums + counted
        weight = self._config.mtp_loss_weight / max(1, depths)
        loss = sums[0] * _over(1.0, state.loss_tokens)
        for mtp_sum, tokens in zip(sums[1:], state.mtp_tokens, strict=True):
            loss = loss + mtp_sum * _over(weight, tokens)
        return loss

    def _cross_entropy(self, logits_BSV: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        """Return the sum over targets that count, in float32 at least."""
        logits = logits_BSV.flatten(0, 1).to(self._high)
        return F.cross_entropy(logits, targets_BS.flatten(), ignore_index=IGNORED, reduction="sum")

    def result(self) -> StepResult:
        """Return the sums since the last call and reset them; zeros on a stage that computes no loss."""
        sums = self._sums
        if sums is None:
            device = next(self.module.parameters()).device
            sums = torch.zeros(1 + self._config.num_nextn_predict_layers, dtype=self._high, device=device)
        self._sums = None
        return StepResult(ce_sum=sums[0], mtp_sums=sums[1:])


def _over(factor: float, tokens: int) -> float:
    return factor / tokens if tokens else 0.0
