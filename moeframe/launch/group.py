"""Join the job: device and default process group of this rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from moeframe.errors import JobFailedError, TopologyError, UserInputError
from moeframe.launch.environment import RENDEZVOUS, World, detect

__all__ = ["TIMEOUT", "choose_device", "joined", "this_process"]

TIMEOUT = timedelta(minutes=10)
"""How long a collective may wait for its peers."""


def this_process() -> World:
    """Return this process among all of the job: of a process group that the caller already made, or of the launcher."""
    launched = detect()
    if not dist.is_initialized():
        return launched
    rank, size = dist.get_rank(), dist.get_world_size()
    if launched.launcher != "none" and (launched.rank, launched.world_size) == (rank, size):
        return launched
    return World(
        launcher="caller",
        rank=rank,
        world_size=size,
        local_rank=int(os.environ.get("LOCAL_RANK", rank)),
        local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", size)),
        run_id=os.environ.get("TORCHELASTIC_RUN_ID", ""),
    )


def choose_device(wanted: Literal["auto", "cpu", "cuda"], world: World) -> torch.device:
    """Return this rank's device; `auto` is cuda when there is a GPU for every process of this node.

    A process group that the caller made for one GPU (`device_id`) says which; ranks may share it.

    Raises:
        UserInputError: cuda is demanded and torch finds no usable GPU.
        TopologyError: fewer GPUs than processes on this node.
    """
    group = dist.group.WORLD
    bound = None if group is None else group.bound_device_id
    if wanted != "cpu" and bound is not None and bound.type == "cuda":
        torch.cuda.set_device(bound)
        return bound
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and found < world.local_world_size):
        return torch.device("cpu")
    if found == 0:
        raise UserInputError(
            "launch.device is 'cuda', but torch finds no usable GPU here (torch.cuda.is_available() is False; "
            f"torch {torch.__version__}). Install a CUDA build of torch and check nvidia-smi, or use launch.device=cpu."
        )
    if found < world.local_world_size:
        raise TopologyError(
            f"{world.local_world_size} processes on this node, but torch finds {found} GPUs. "
            f"Use launch.nproc_per_node={found}, or launch.device=cpu."
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def joined(world: World, device: torch.device, *, start_s: float = TIMEOUT.total_seconds()) -> Iterator[None]:
    """Hold the default process group open: NCCL on GPUs, gloo on CPU. One process without a launcher needs none.

    After an error on a GPU it stays open until the process ends, which then is soon: closing it would wait for
    collectives of ranks that wait for this one.

    Args:
        world: this process among all.
        device: of this rank.
        start_s: how long the ranks of a job may take until the last one has started.

    Raises:
        JobFailedError: some have not by then; names them.
    """
    if world.launcher == "none" or dist.is_initialized():
        yield
        return
    if world.launcher == "slurm":
        os.environ.setdefault("MASTER_PORT", "29500")
        os.environ.setdefault("MASTER_ADDR", os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"))
    store = _meeting(world, start_s)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=world.rank,
        world_size=world.world_size,
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    try:
        yield
    except BaseException:
        if device.type != "cuda":
            dist.destroy_process_group()  # which wakes the ranks that wait for this one
        raise
    dist.destroy_process_group()


def _meeting(world: World, start_s: float) -> PrefixStore:
    """Return the store of the job once every rank has come to it."""
    limit = timedelta(seconds=start_s)
    url = os.environ.get(RENDEZVOUS, "env://")
    words = f"within {start_s:g} s. Their processes are stopped, or still import, or a node's launcher did not start"
    try:
        shared, _, _ = next(rendezvous(url, world.rank, world.world_size, timeout=limit))
    except dist.DistStoreError as error:
        raise JobFailedError(f"not all {world.world_size} ranks have started {words} ({error}).") from error
    # torchrun may keep its store over a restart: addresses of the attempt before must not be found there.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"moeframe/attempt-{attempt}", shared)
    keys = [f"started/{rank}" for rank in range(world.world_size)]
    store.set(keys[world.rank], socket.gethostname())
    try:
        store.wait(keys, limit)
    except RuntimeError as error:  # of which DistStoreError is one
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        if missing:  # else the last one has come just now
            named = ", ".join(map(str, missing))
            raise JobFailedError(
                f"rank_absent: of {world.world_size} ranks, {named} have not started {words} (rank {world.rank} waits)."
            ) from error
    store.set_timeout(TIMEOUT)
    return store
