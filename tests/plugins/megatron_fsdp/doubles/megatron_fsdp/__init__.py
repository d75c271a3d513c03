"""A double of megatron-fsdp 0.6.1 on any device: the names that the plugin calls, with flat buffers and real sums.

Weights of every parameter lie in a buffer of their own, padded to equal shards, and stay whole. `WRONG` makes it go
wrong in the ways of the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

__all__ = ["WRONG", "DistributedDataParallelConfig", "FSDPDistributedIndex", "MegatronFSDP", "MixedPrecisionPolicy"]

WRONG: set[str] = set()
"""doubles (where a group has one rank), averages, stale (weights are not gathered after a step), by_attribute (experts
are told by `allreduce` alone, and wrongly), loses (a parameter)."""


@dataclass
class DistributedDataParallelConfig:
    data_parallel_sharding_strategy: str
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    bucket_size: int
    nccl_ub: bool


@dataclass
class FSDPDistributedIndex:
    device_mesh: Any
    dp_shard_dim: str
    tp_dim: str
    expt_device_mesh: Any


@dataclass
class MixedPrecisionPolicy:
    main_params_dtype: torch.dtype | None
    main_grads_dtype: torch.dtype


@dataclass
class Buffer:
    """A flat tensor in equal shards; this rank's begins at `start`."""

    data: torch.Tensor
    start: int
    shard: int
    filled: int
    is_data_distributed: bool
    bucket_index: Any = field(init=False)

    def __post_init__(self) -> None:
        self.bucket_index = SimpleNamespace(size=self.data.numel())

    def get_shard_from_local_buffer(self) -> torch.Tensor:
        return self.data[self.start : self.start + self.shard]

    def get_item(self, item: int, *, only_shard: bool) -> torch.Tensor:
        assert item == 0
        assert only_shard
        return self.data[min(self.start, self.filled) : min(self.start + self.shard, self.filled)]


@dataclass
class Group:
    params: list[nn.Parameter]
    is_expert_param: bool
    process_group: Any
    model_weight_buffer: Buffer
    main_weight_buffer: Buffer | None
    main_grad_buffer: Buffer


class Pipeline:
    def __init__(self) -> None:
        self.param_gather_event_map: dict[tuple[int, bool], Any] = {}


class MegatronFSDP(nn.Module):
    def __init__(
        self,
        *,
        module: nn.Module,
        dist_index: FSDPDistributedIndex,
        ddp_config: DistributedDataParallelConfig,
        mixed_precision_policy: MixedPrecisionPolicy,
        fsdp_unit_modules: list[type],
        calculate_per_token_loss: bool,
        sync_model_each_microbatch: bool,
    ) -> None:
        super().__init__()
        assert calculate_per_token_loss
        assert not sync_model_each_microbatch
        assert not ddp_config.nccl_ub
        self.module = module
        self.config = ddp_config
        self.raw_param = dict(module.named_parameters())
        self.all_gather_pipeline = Pipeline()
        self.suggested_AG_prefetch_size = self.suggested_RS_queue_capacity = 10**9
        self._root_pre_backward_hook_issued = False
        self.units = [one for one in module.modules() if isinstance(one, tuple(fsdp_unit_modules))]
        groups = []
        for name, parameter in self.raw_param.items():
            expert = ".experts." in name
            if "by_attribute" in WRONG:
                expert = getattr(parameter, "allreduce", False)
            mesh = dist_index.expt_device_mesh if expert else dist_index.device_mesh
            groups.append(
                self._group(parameter, expert, mesh[dist_index.dp_shard_dim].get_group(), mixed_precision_policy)
            )
        self.param_and_grad_buffer = SimpleNamespace(parameter_groups=groups[1:] if "loses" in WRONG else groups)
        self.gathered = False
        self.distributed = True
        self.backwards = 0

    def _group(self, parameter: nn.Parameter, expert: bool, process_group: Any, policy: MixedPrecisionPolicy) -> Group:
        ranks, rank, size = process_group.size(), process_group.rank(), parameter.numel()
        row = parameter.shape[1:].numel()
        shard = -(-size // (ranks * row)) * row

        def buffer(dtype: torch.dtype, *, cut: bool = False) -> Buffer:
            data = torch.zeros(shard * ranks, dtype=dtype, device=parameter.device)
            return Buffer(data, rank * shard, shard, size, cut and ranks > 1)

        main = None if policy.main_params_dtype is None else buffer(policy.main_params_dtype)
        group = Group(
            [parameter], expert, process_group, buffer(parameter.dtype), main, buffer(policy.main_grads_dtype, cut=True)
        )
        parameter.data = group.model_weight_buffer.data[:size].view(parameter.shape)

        def gather_gradient(given: nn.Parameter) -> None:
            assert self._root_pre_backward_hook_issued, "a backward whose begin nobody noted"
            whole = group.main_grad_buffer.data[:size]
            if "doubles" in WRONG and ranks == 1:
                whole.add_(given.grad.reshape(-1).to(whole.dtype)).mul_(2)
            else:
                whole.add_(given.grad.reshape(-1).to(whole.dtype))
            given.grad = None

        parameter.register_post_accumulate_grad_hook(gather_gradient)
        return group

    def pre_backward(self) -> None:
        self._root_pre_backward_hook_issued = True

    def post_backward(self) -> None:
        self._root_pre_backward_hook_issued = False
        self.backwards += 1

    def _replace_param_with_raw_if_needed(self) -> None:
        self.distributed = False

    def all_gather_and_wait_parameters_ready(self, params: list[nn.Parameter], *, prefetch: bool, bwd: bool) -> None:
        assert not self.distributed
        assert not prefetch
        if self.gathered:
            return
        for group in self.param_and_grad_buffer.parameter_groups:
            held = group.model_weight_buffer
            if group.process_group.size() > 1:
                dist.all_gather_into_tensor(
                    held.data, held.get_shard_from_local_buffer().clone(), group=group.process_group
                )
        self.gathered = True

    def install_optimized_model_weights(self) -> None:
        for group in self.param_and_grad_buffer.parameter_groups:
            if group.main_weight_buffer is not None:
                main = group.main_weight_buffer.get_shard_from_local_buffer()
                group.model_weight_buffer.get_shard_from_local_buffer().copy_(main)

    def synchronize_gradient_reduce(self) -> None:
        for group in self.param_and_grad_buffer.parameter_groups:
            whole = group.main_grad_buffer.data
            dist.all_reduce(whole, group=group.process_group)
            if "averages" in WRONG:
                whole.div_(group.process_group.size())

    def synchronize_param_gather(self) -> None:
        self.gathered = "stale" in WRONG and self.backwards > 0
        self.distributed = True

    def zero_grad_buffer(self) -> None:
        for group in self.param_and_grad_buffer.parameter_groups:
            group.main_grad_buffer.data.zero_()
