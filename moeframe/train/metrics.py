"""The numbers of a step, global: sums over all ranks, never a mean of means."""

from __future__ import annotations

import resource
import signal
from dataclasses import dataclass

import torch
import torch.distributed as dist

from moeframe.launch.signals import ENDING
from moeframe.model.counters import Counters
from moeframe.protocols.data import IGNORED, MicroBatch
from moeframe.protocols.schedule import StepResult

__all__ = [
    "StepSums",
    "StepTokens",
    "agree_on_tokens",
    "dead_experts",
    "gather_sums",
    "max_violation",
    "peak_flops",
    "peak_memory_bytes",
]

PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "H800": 989e12, "A100": 312e12, "B200": 2250e12}
"""Dense bfloat16 peak of one device by a part of its name, FLOP/s (vendor data sheets)."""


@dataclass(frozen=True, kw_only=True)
class StepTokens:
    """What all ranks agreed on before the first backward.

    `stop` is the signal that ends the job, 0: go on. `save_failed`: on some rank the checkpoint under way has failed.
    """

    loss_tokens: int
    mtp_tokens: tuple[int, ...]
    valid_tokens: int
    stop: int = 0
    save_failed: bool = False


def _sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    if dist.is_initialized():
        dist.all_reduce(values)
    return values


def agree_on_tokens(
    micro_batches: list[MicroBatch],
    *,
    mtp_depth: int,
    copies: int,
    device: torch.device,
    stop: int = 0,
    save_failed: bool = False,
) -> StepTokens:
    """Count the tokens of the whole step over all ranks, and agree on stopping.

    Args:
        micro_batches: this rank's.
        mtp_depth: number of MTP modules.
        copies: ranks that see the same micro-batches (pipeline ranks); the counts are divided by it.
        device: where collectives run.
        stop: the signal this process received, one of `ENDING`, 0 for none. Ranks agree on the first of them.
        save_failed: whether the checkpoint that this rank writes in the background has failed.

    Blocks the host once.
    """
    local = torch.zeros(2 + mtp_depth + 1 + len(ENDING), dtype=torch.int64, device=device)
    for batch in micro_batches:
        local[0] += (batch.targets != IGNORED).sum()
        local[1] += batch.input_ids.numel() if batch.valid is None else batch.valid.sum()
        for depth, targets in enumerate(batch.mtp_targets):
            local[2 + depth] += (targets != IGNORED).sum()
    local[2 + mtp_depth] += save_failed
    if stop:
        local[2 + mtp_depth + 1 + ENDING.index(signal.Signals(stop))] += 1
    loss_tokens, valid_tokens, *rest = _sum_over_ranks(local).tolist()
    mtp_tokens, failures, stops = rest[:mtp_depth], rest[mtp_depth], rest[mtp_depth + 1 :]
    return StepTokens(
        loss_tokens=loss_tokens // copies,
        valid_tokens=valid_tokens // copies,
        mtp_tokens=tuple(count // copies for count in mtp_tokens),
        stop=next((int(number) for number, count in zip(ENDING, stops, strict=True) if count), 0),
        save_failed=failures > 0,
    )


@dataclass(frozen=True, kw_only=True)
class StepSums:
    """Sums of one step over all ranks.

    `ce_sum` and `mtp_sums` (by depth): cross-entropies over tokens. `balance_sum`: tokens x balance loss over sequences
    and layers. `dropped`: assignments that no expert took. `tokens_per_expert` (MoE layers, experts) int64 on the
    device, `loads` the same on the host.
    """

    ce_sum: float
    mtp_sums: tuple[float, ...]
    balance_sum: float
    dropped: int
    tokens_per_expert: torch.Tensor
    loads: torch.Tensor


def max_violation(loads: torch.Tensor) -> float:
    """Return the largest max(load) / mean(load) - 1 of any layer of (layers, experts); 0 where there is no load.

    0 is perfect balance (Wang et al., arXiv 2408.15664, section 4).
    """
    load = loads.double()
    if not load.numel():
        return 0.0
    mean = load.mean(1)
    return float(torch.where(mean > 0, load.amax(1) / mean.clamp_min(1e-30) - 1.0, 0.0).max())


def dead_experts(loads: torch.Tensor) -> int:
    """Return how many experts of all layers together got no token."""
    return int((loads == 0).sum())


def gather_sums(result: StepResult, counters: Counters) -> StepSums:
    """Sum losses and counters over all ranks in one collective; blocks the host once.

    `result` is zeros on a rank without the last stage, `counters` zeros in the layers of other stages.
    """
    parts = [
        result.ce_sum,
        result.mtp_sums,
        counters.balance_sum.sum(),
        counters.dropped.sum(),
        counters.tokens_per_expert,
    ]
    # Counts are exact in float64 up to 2**53.
    packed = _sum_over_ranks(torch.cat([part.detach().double().reshape(-1) for part in parts]))
    host = packed.cpu()
    depth, shape = result.mtp_sums.numel(), counters.tokens_per_expert.shape
    ce_sum, *mtp_sums, balance_sum, dropped = host[: 3 + depth].tolist()
    return StepSums(
        ce_sum=ce_sum,
        mtp_sums=tuple(mtp_sums),
        balance_sum=balance_sum,
        dropped=round(dropped),
        tokens_per_expert=packed[3 + depth :].to(torch.int64).reshape(shape),
        loads=host[3 + depth :].to(torch.int64).reshape(shape),
    )


def peak_memory_bytes(device: torch.device) -> int:
    """Return the largest peak of any rank: allocated device memory on a GPU, resident memory on a CPU."""
    if device.type == "cuda":
        own = torch.cuda.max_memory_allocated(device)
    else:
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.tensor(own, dtype=torch.int64, device=device)
    if dist.is_initialized():
        dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    return int(peak)


def peak_flops(device: torch.device) -> float | None:
    """Return the device's dense bfloat16 peak in FLOP/s, None when it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)
