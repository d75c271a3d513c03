"""Process groups and device meshes of a job, from its degrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch
from torch import distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from moeframe.errors import ContractError, TopologyError
from moeframe.mesh.degrees import Coordinates, Degrees

__all__ = ["AXES", "JobMeshes", "build_meshes"]

AXES: Final = ("pp", "dp_replicate", "dp_shard", "dp", "ep", "edp", "edp_shard")
"""Every axis; groups are created in this order on every rank. `dp` is dp_replicate and dp_shard flattened, `edp` is
dp_replicate and edp_shard flattened."""

_SEVERAL: Final = {
    # meshes over several axes, each with its axes in the rank order, outermost first
    ("dp_replicate", "dp_shard"): ("dp_replicate", "dp_shard"),
    ("edp", "ep"): ("edp", "ep"),
    ("ep", "edp"): ("edp", "ep"),
    ("dp_replicate", "edp_shard"): ("dp_replicate", "edp_shard", "ep"),
    ("ep", "dp_replicate", "edp_shard"): ("dp_replicate", "edp_shard", "ep"),
}


@dataclass(frozen=True, kw_only=True)
class JobMeshes:
    """Where this rank stands, and its process groups by axis (moeframe.protocols.sharding.Meshes).

    `groups` is empty in a job of one process without a default process group.
    """

    device: torch.device
    degrees: Degrees
    coordinates: Coordinates
    global_rank: int
    groups: dict[str, ProcessGroup]
    _meshes: dict[tuple[str, ...], DeviceMesh] = field(default_factory=dict, repr=False)

    def size(self, axis: str) -> int:
        """Return the number of ranks along an axis."""
        if axis == "dp":
            return self.degrees.data_ranks
        size = getattr(self.degrees, axis)
        assert isinstance(size, int)
        return size

    def rank(self, axis: str) -> int:
        """Return this rank's coordinate along an axis."""
        if axis == "dp":
            return self.global_rank % self.degrees.data_ranks
        return self.coordinates[axis]

    def group(self, axis: str) -> ProcessGroup | None:
        """Return the process group along an axis; None when the job has no process group at all."""
        if axis not in AXES:
            raise KeyError(f"There is no axis {axis!r}. Axes: {', '.join(AXES)}.")
        return self.groups.get(axis)

    def mesh(self, *axes: str) -> DeviceMesh:
        """Return the device mesh over one axis or several.

        Several are dp_replicate x dp_shard, edp x ep, ep x edp, dp_replicate x edp_shard, and
        ep x dp_replicate x edp_shard. Equal arguments give the same object, so tensors of one layout share one mesh.

        Raises:
            ContractError: the job has no process group, or `axes` is none of these.
        """
        if not self.groups:
            raise ContractError(
                f"mesh{axes} was asked for, but this job is one process without a process group. "
                "Ask for groups first: group(axis) is None then, and every tensor is whole."
            )
        if axes not in self._meshes:
            self._meshes[axes] = self._build(axes)
        return self._meshes[axes]

    def _build(self, axes: tuple[str, ...]) -> DeviceMesh:
        kind = self.device.type
        if len(axes) == 1 and axes[0] in AXES:
            return DeviceMesh.from_group(self.groups[axes[0]], kind, mesh_dim_names=axes)
        if axes not in _SEVERAL:
            known = ", ".join(map(str, _SEVERAL))
            raise ContractError(f"There is no mesh over {axes}. Use one of the axes {', '.join(AXES)}, or {known}.")
        order = _SEVERAL[axes]
        first = self.coordinates.pp * self.degrees.data_ranks
        ranks = torch.arange(first, first + self.degrees.data_ranks).view([self.size(axis) for axis in order])
        # A mesh that leaves an axis out holds this rank's place on it only.
        ranks = ranks[tuple(slice(None) if axis in axes else self.rank(axis) for axis in order)]
        kept = [axis for axis in order if axis in axes]
        # Through a list: `contiguous` keeps odd strides where a size is 1, and DeviceMesh reads the strides.
        ranks = torch.tensor(ranks.permute([kept.index(axis) for axis in axes]).tolist())
        return DeviceMesh.from_group([self.groups[axis] for axis in axes], kind, mesh=ranks, mesh_dim_names=axes)


def build_meshes(degrees: Degrees, device: torch.device, timeout: timedelta | None = None) -> JobMeshes:
    """Create the process groups of every axis; collective over the default group.

    Axes of size 1 share one group of this rank alone; without replicas `dp_shard` is `dp` and `edp_shard` is `edp`. All
    other axes have groups of their own even when their ranks agree, so that expert exchanges and weight gathers can
    overlap. The replicas of an expert's shards are the `dp_replicate` group, like those of a dense shard.

    Args:
        degrees: sizes of the axes, already known to factor.
        device: where this rank computes.
        timeout: of collectives on these groups; None for the backend's default.

    Raises:
        TopologyError: the number of running processes is not `degrees.world`.
    """
    grouped = dist.is_available() and dist.is_initialized()
    running = dist.get_world_size() if grouped else 1
    if running != degrees.world:
        raise TopologyError(
            f"The layout needs {degrees.world} processes (pp {degrees.pp} x dp_replicate {degrees.dp_replicate} x "
            f"dp_shard {degrees.dp_shard}), but {running} run. Start {degrees.world}, or change the layout."
        )
    rank = dist.get_rank() if grouped else 0
    groups: dict[str, ProcessGroup] = {}
    if grouped:
        created: dict[str, ProcessGroup] = {}
        for axis in AXES:
            name = _group_name(degrees, axis)
            if name not in created:
                created[name] = _create(degrees, axis, name, rank, timeout)
            groups[axis] = created[name]
    return JobMeshes(
        device=device, degrees=degrees, coordinates=degrees.coordinates(rank), global_rank=rank, groups=groups
    )


def _size(degrees: Degrees, axis: str) -> int:
    return int(degrees.data_ranks if axis == "dp" else getattr(degrees, axis))


def _group_name(degrees: Degrees, axis: str) -> str:
    """Return what the group of an axis is called; axes of one name share a group."""
    if _size(degrees, axis) == 1:
        return "self"
    if degrees.dp_replicate == 1:
        return {"dp_shard": "dp", "edp_shard": "edp"}.get(axis, axis)
    return axis


def _create(degrees: Degrees, axis: str, name: str, rank: int, timeout: timedelta | None) -> ProcessGroup:
    """Create the group of every line of ranks along an axis and return the one this rank is in."""
    mine: ProcessGroup | None = None
    for line in _lines(degrees, axis):
        group = dist.new_group(line, timeout=timeout, group_desc=name)
        if rank in line:
            mine = group
    assert mine is not None
    return mine


def _lines(degrees: Degrees, axis: str) -> list[list[int]]:
    """Return the ranks that differ along one axis only, for every place on the other axes."""
    same: dict[str, Callable[[Coordinates], tuple[int, ...]]] = {
        "pp": lambda at: (at.dp_replicate, at.dp_shard),
        "dp_replicate": lambda at: (at.pp, at.dp_shard),
        "dp_shard": lambda at: (at.pp, at.dp_replicate),
        "dp": lambda at: (at.pp,),
        "ep": lambda at: (at.pp, at.edp),
        "edp": lambda at: (at.pp, at.ep),
        "edp_shard": lambda at: (at.pp, at.dp_replicate, at.ep),
    }
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank in range(degrees.world):
        lines.setdefault(same[axis](degrees.coordinates(rank)), []).append(rank)
    return list(lines.values())
