"""A stage as torch.distributed.pipelining runs it.

This module alone leans on what torch does not document: methods and buffers of `PipelineStage`, as they are in torch
2.11 and 2.13. tests/plugins/pipelining/test_running_stage.py says what it relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.pipelining import PipelineStage

from moeframe import trace
from moeframe.errors import ContractError
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.schedule import Stage

__all__ = ["RunningStage", "own_loss"]


def own_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # noqa: ARG001 - torch's signature
    """Return the loss that the last stage has computed already, as its output.

    So no logits outlive their micro-batch.
    """
    return output


class RunningStage(PipelineStage):
    """Runs a `Stage` on whole micro-batches: torch passes on nothing but the hidden state.

    Torch would keep receive buffers for every micro-batch of a step. Here one lives from the receive that fills it to
    the backward that is done with it, so that a rank holds as many as its plan says.

    Args:
        stage: what to run.
        boundary: a tensor like those that stages hand on.
        group: of the pipeline's ranks.
        device: of the stage.
    """

    def __init__(self, stage: Stage, boundary: torch.Tensor, *, group: ProcessGroup, device: torch.device) -> None:
        passed = boundary.detach().requires_grad_()
        loss = torch.empty((), dtype=torch.float64, device="meta", requires_grad=True)
        super().__init__(
            stage.module,
            stage.index,
            stage.num_stages,
            device,
            input_args=() if stage.index == 0 else (passed,),
            output_args=(loss if stage.index == stage.num_stages - 1 else passed,),
            group=group,
        )
        self.stage = stage
        self.micro_batches: Sequence[MicroBatch] = ()
        self._boundary = boundary
        self._nothing = boundary.new_empty(0, device=device)
        self._current: MicroBatch | None = None
        self._raised: Exception | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of a micro-batch. An error of the stage itself is raised as it is."""
        self._current = self.micro_batches[fwd_chunk_id]
        with trace.at(micro_batch=fwd_chunk_id, stage=self.stage_index):
            try:
                return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)
            except RuntimeError as error:
                if self._raised is not None and error.__cause__ is self._raised:
                    raise self._raised from None
                raise

    def forward_maybe_with_nosync(self, *args: Any, **kwargs: Any) -> torch.Tensor:  # noqa: ARG002 - torch's signature
        """Run the stage on its input; the last one returns the loss."""
        try:
            return self._run_forward(args[0] if args else None)
        except Exception as error:
            self._raised = error
            raise

    def _run_forward(self, hidden: torch.Tensor | None) -> torch.Tensor:
        assert self._current is not None
        output = self.stage.forward(hidden, self._current)
        if self.is_last:
            return self.stage.loss(output, self._current).double()
        if not isinstance(output, torch.Tensor):
            raise ContractError(f"Stage {self.stage_index} must hand one tensor to the next stage, not several.")
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the backward of a micro-batch, or the part of it that gives the input's gradient."""
        self._placed(super().backward_one_chunk, bwd_chunk_id, *args, **kwargs)
        # What weight gradients still need of these, torch holds elsewhere.
        self._release(self.args_recv_info.get(bwd_chunk_id, ()))
        self._release(self.grad_recv_info.get(bwd_chunk_id, ()))

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        """Run the rest of a backward: the gradients of weights."""
        self._placed(super().backward_weight_one_chunk, bwd_chunk_id, *args, **kwargs)

    def _placed(self, run: Callable[..., Any], micro_batch: int, *args: Any, **kwargs: Any) -> None:
        with trace.at(micro_batch=micro_batch, stage=self.stage_index):
            run(micro_batch, *args, **kwargs)

    def get_local_bwd_output(self, mb_index: int) -> Any:
        """Return the gradient for the stage before on this rank; nothing in an evaluation, where torch asks too."""
        return super().get_local_bwd_output(mb_index) if self.has_backward else ()  # type: ignore[no-untyped-call]

    def set_local_bwd_input(self, next_stage_bwd_outputs: Any, mb_index: int) -> None:
        """Take the gradient of the stage after on this rank, if there is one."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> Any:
        """Return the receives of a micro-batch's input, into a new buffer."""
        self._lend(self.args_recv_info[fwd_chunk_id], requires_grad=self.has_backward)
        return super().get_fwd_recv_ops(fwd_chunk_id)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> Any:
        """Return the receives of the gradient of a micro-batch's output, into a new buffer."""
        self._lend(self.grad_recv_info.get(bwd_chunk_id, ()), requires_grad=False)
        return super().get_bwd_recv_ops(bwd_chunk_id)

    def _get_init_p2p_neighbors_ops(self) -> list[Any]:
        """Return the messages that open connections, none to this rank itself: torch 2.11 lists those in a V too."""
        opening = super()._get_init_p2p_neighbors_ops()
        return [message for message in opening if message.group_peer != self.group_rank]

    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_forward_infra(*args, **kwargs)
        for infos in self.args_recv_info.values():
            self._release(infos)
        return prepared

    def _prepare_backward_infra(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_backward_infra(*args, **kwargs)
        for infos in self.grad_recv_info.values():
            self._release(infos)
        return prepared

    def _lend(self, infos: Iterable[Any], *, requires_grad: bool) -> None:
        for info in infos:
            info.buffer = self._boundary.new_empty(
                self._boundary.shape, device=self.device, requires_grad=requires_grad
            )

    def _release(self, infos: Iterable[Any]) -> None:
        for info in infos:
            info.buffer = self._nothing
