"""`hsdp`: the model sharded within each of several replicas, by torch's fully_shard over two dimensions."""

from __future__ import annotations

from typing import ClassVar

from moeframe_torch_sharding.fsdp2 import Fsdp2, Fsdp2Model

__all__ = ["Hsdp", "HsdpModel"]


class HsdpModel(Fsdp2Model):
    """Dense parameters are sharded over `dp_shard`, experts over `edp_shard`; both are replicated over `dp_replicate`.

    In each backward gradients are summed into shards within a replica, then between replicas.
    """

    # One replica holds every piece once: dp_shard = edp_shard x ep.
    dense_axis: ClassVar[str | None] = "dp_shard"
    expert_axis: ClassVar[str | None] = "dp_shard"
    dense_mesh: ClassVar[tuple[str, ...]] = ("dp_replicate", "dp_shard")
    expert_mesh: ClassVar[tuple[str, ...]] = ("dp_replicate", "edp_shard")


class Hsdp(Fsdp2):
    """Lays a model out as `fsdp2` does, within each replica."""

    model_class: ClassVar[type[Fsdp2Model]] = HsdpModel
