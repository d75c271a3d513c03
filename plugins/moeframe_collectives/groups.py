"""Which process group the exchanges of a dispatcher run on."""

from __future__ import annotations

from typing import Any

from torch import distributed
from torch.distributed import ProcessGroup

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import DispatcherContext

__all__ = ["exchange_group"]


def exchange_group(context: DispatcherContext, max_ctas: int | None) -> ProcessGroup | None:
    """Return the ep group; with a limit, another of the same ranks whose kernels keep it. None: one rank.

    Collective over the job where there is a limit: NCCL splits the groups off the one of all ranks, at once. An
    exchange that runs beside compute takes its multiprocessors from it for as long as it lasts, waiting for the other
    ranks included.

    Raises:
        ContractError: there is a limit, and the group does not run on NCCL.
    """
    group = context.ep_group
    if group is None or context.ep_size == 1:
        return None
    if max_ctas is None:
        return group
    if context.device.type != "cuda":
        raise ContractError(
            f"dispatcher.options.max_ctas = {max_ctas} limits thread blocks of NCCL, but the exchanges of this job run "
            f"on {distributed.get_backend(group)} (device {context.device}). Set max_ctas to null, or launch.device "
            "to cuda."
        )
    limited: ProcessGroup = distributed.new_group(
        distributed.get_process_group_ranks(group),
        pg_options=_limited(max_ctas),
        group_desc=context.ep_axis,
        use_local_synchronization=True,
    )
    return limited


def _limited(max_ctas: int) -> Any:
    options = distributed.ProcessGroupNCCL.Options()
    options.config.max_ctas = max_ctas
    return options
