"""Who started this process, and which rank it is. Importable without torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from moeframe.errors import TopologyError

__all__ = ["RENDEZVOUS", "World", "detect", "process_environment"]

RENDEZVOUS = "MOEFRAME_RENDEZVOUS"
"""Environment variable with the URL at which processes started by `moeframe run` meet."""

Launcher = Literal["none", "local", "torchrun", "slurm", "caller"]


@dataclass(frozen=True, kw_only=True)
class World:
    """This process among all processes of the job. `run_id` is shared by the restarts of one job, or empty."""

    launcher: Launcher
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    run_id: str = ""


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdigit():
        raise TopologyError(
            f"the environment variable {name} is {text!r}: a launcher sets it to a number. Start the job with "
            f"`moeframe run`, `torchrun -m moeframe run ...` or `srun moeframe run ...`, or unset its variables."
        )
    return int(text)


def detect(environment: Mapping[str, str] = os.environ) -> World:
    """Read who started this process from its environment variables.

    `moeframe run` sets `MOEFRAME_RENDEZVOUS`; torchrun (or anything that sets the same variables) `RANK` and
    `WORLD_SIZE`; Slurm `SLURM_PROCID` and `SLURM_STEP_NUM_TASKS`. A single Slurm task is no launcher: it may be an
    interactive shell.

    Raises:
        TopologyError: a variable that belongs to a launcher is missing or not a number.
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return World(
            launcher="local" if RENDEZVOUS in environment else "torchrun",
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            local_rank=_number(environment, "LOCAL_RANK"),
            local_world_size=_number(environment, "LOCAL_WORLD_SIZE"),
            run_id=environment.get("TORCHELASTIC_RUN_ID", ""),
        )
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        return World(
            launcher="slurm",
            rank=_number(environment, "SLURM_PROCID"),
            world_size=_number(environment, "SLURM_STEP_NUM_TASKS"),
            local_rank=_number(environment, "SLURM_LOCALID"),
            local_world_size=int(environment.get("SLURM_STEP_TASKS_PER_NODE", "1").split("(", maxsplit=1)[0]),
            run_id=environment.get("SLURM_JOB_ID", ""),
        )
    return World(launcher="none", rank=0, world_size=1, local_rank=0, local_world_size=1)


def process_environment(rank: int, world_size: int, rendezvous: str, *, cores: int) -> dict[str, str]:
    """Return the variables of one local process, over those it inherits.

    Cores are divided among the processes unless OMP_NUM_THREADS is set. NVLink multicast stays off: no backend here
    uses it, and a process that dies while holding a multicast object can leave the driver in a bad state.
    """
    inherited = os.environ
    added = {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        RENDEZVOUS: rendezvous,
        "PYTHONUNBUFFERED": "1",
    }
    defaults = {
        "OMP_NUM_THREADS": str(max(1, cores // world_size)),
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NVSHMEM_DISABLE_NVLS": "1",
    }
    return {**added, **{name: value for name, value in defaults.items() if name not in inherited}}
