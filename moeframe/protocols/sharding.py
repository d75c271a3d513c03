"""The sharding protocol: how parameters, gradients and optimizer state lie on the ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from moeframe.protocols.precision import DtypeName, Precision

__all__ = [
    "AdamWSettings",
    "Meshes",
    "ModelPlan",
    "Parameter",
    "Role",
    "ShardedModel",
    "Sharding",
    "ShardingTraits",
    "Spread",
    "StateSpread",
    "Unit",
]

Role = Literal["dense", "expert", "router", "embedding"]


@dataclass(frozen=True, kw_only=True)
class ShardingTraits:
    """What the rest of a job may rely on."""

    parameters_stay_whole: bool
    """Parameters are whole on every rank between forward and backward; split-backward schedules need it."""
    min_data_ranks: int = 1
    needs_dp_replicate: bool = False
    """Only makes sense with `parallel.dp_replicate` > 1."""
    supports_dp_replicate: bool = True
    device_kinds: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[DtypeName, ...] = ("float32", "float64", "bfloat16")
    """What units may compute in."""
    supports_pipeline: bool = True
    """Works with `parallel.pp` > 1."""
    supports_compile: bool = True
    """Works on units whose modules are compiled (`train.compile`)."""
    runs_phases: bool = False
    """A model may be run phase by phase: by its units' modules and `Unit.methods`, never the root, after
    `ShardedModel.hold_gradients`, with a backward for each phase, and weight gradients that are added to ``.grad``
    later, past autograd's hooks."""


Spread = Literal["whole", "replica", "all"]
"""Which ranks share a tensor. whole: none, each holds all of it; replica: those of one replica of the sharded model
(`dp_shard`, for experts `edp_shard`); all: all data ranks (`dp`, for experts `edp`)."""


@dataclass(frozen=True, kw_only=True)
class StateSpread:
    """How what a job holds between steps lies on the ranks; gradients: at the end of the last backward."""

    parameters: Spread
    gradients: Spread
    optimizer: Spread


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of the model, by its name in the module tree.

    `role` decides over which ranks it is replicated or sharded: experts over `edp`, everything else over all data
    ranks. An `expert` parameter stacks the local experts in its first dimension; `global_shape` counts all experts.
    """

    name: str
    role: Role
    global_shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Unit:
    """A module that is gathered and freed as a whole; `name` is its path in the module tree ("" is the root).

    A parameter belongs to the innermost unit above it. `roles` are the roles that occur directly in the unit. A unit
    with `high_precision` computes with its parameters in at least float32 (the router).

    A unit is run by calling its module, on every rank in every micro-batch. The module takes and returns differentiable
    tensors as they are or in tuples, lists and dicts, and returns none as a view, so that a strategy finds them.
    """

    name: str
    parameters: tuple[str, ...]
    roles: frozenset[Role]
    high_precision: bool = False
    methods: tuple[str, ...] = ()
    """Methods of the module that a schedule with the trait `runs_phases` calls instead of the module itself."""


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """Everything a sharding strategy needs to know of a model part.

    `units` lists them in the order of execution, children before the unit that contains them, the root last. A model is
    handed over on the meta device; `materialize(unit_name, device)` allocates and fills the parameters and buffers that
    belong directly to a unit, so that no rank ever holds the whole model unsharded.

    `roots` are the modules that a schedule calls: the model itself, or each pipeline stage in it when a rank holds
    several. A stage's modules are those of the model's tree; parameters of the root unit belong to the stage that has
    them.
    """

    units: tuple[Unit, ...]
    parameters: Mapping[str, Parameter]
    materialize: Callable[[str, torch.device], None]
    roots: tuple[str, ...] = ("",)

    def role(self, parameter_name: str) -> Role:
        """Return the role of a parameter; KeyError for a name the model does not have."""
        return self.parameters[parameter_name].role


class Meshes(Protocol):
    """Process groups of the job, by axis: `pp`, `dp_replicate`, `dp_shard`, `ep`, `edp`, `edp_shard`, `dp`.

    `dp` are all data ranks: dp_replicate x dp_shard = edp x ep. `edp` are the holders of one expert: dp_replicate x
    edp_shard, where dp_shard = edp_shard x ep. With one process and no process group every group is None, every size 1.
    """

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""

    def size(self, axis: str) -> int:
        """Number of ranks along the axis."""

    def rank(self, axis: str) -> int:
        """This rank's coordinate along the axis."""

    def group(self, axis: str) -> ProcessGroup | None:
        """The process group along the axis."""

    def mesh(self, *axes: str) -> DeviceMesh:
        """The device mesh over one axis, or over several.

        ("dp_replicate", "dp_shard") and ("dp_replicate", "edp_shard") for hybrid shards; ("ep", "edp") and
        ("ep", "dp_replicate", "edp_shard") for all experts.
        """


@dataclass(frozen=True, kw_only=True)
class AdamWSettings:
    """AdamW as in torch.optim.AdamW. `lr` is the value before any schedule; the trainer sets it before every step."""

    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float


@runtime_checkable
class ShardedModel(Protocol):
    """A model part on its ranks, with the operations that depend on where its parameters lie.

    The gradient that training needs is the *sum* over ranks: the loss of each micro-batch is already divided by the
    number of tokens of the whole global batch. No strategy averages. Expert gradients need no factor then, in any
    layout: the tokens of all ep ranks have met in the dispatch.
    """

    module: nn.Module

    def optimizer(self, settings: AdamWSettings) -> torch.optim.Optimizer:
        """Return AdamW over this rank's share of the parameters."""
        ...

    def hold_gradients(self) -> None:
        """Let gradients gather where they arise, and keep parameters whole, until `finish_gradients`.

        Called by every rank at the start of a step whose backwards come in pieces. Nothing to do where that is so
        anyway.
        """
        return

    def finish_gradients(self) -> None:
        """Bring gradients to their final value. Called once, after the last micro-batch, by every rank."""
        ...

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        """Scale all gradients so that their global L2 norm is at most `max_norm`; None only measures.

        Returns:
            The norm before clipping, float32, equal on all ranks. Every parameter counts once, also an expert that
            several ranks hold; the sum runs over all pipeline stages.
        """
        ...

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return whole gradients by parameter name (experts: all local ones); collective. For proofs, not training."""
        ...

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """Return whole parameters by name (experts: all local ones); collective. For proofs and export."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and persistent buffers by name as tensors or DTensors of global shape."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` gave, on this or another layout."""
        ...

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of an optimizer that `optimizer` made: `step`, `exp_avg` and `exp_avg_sq` by parameter name.

        The moments have the parameter's global shape, as tensors or DTensors that may lie otherwise than in
        `state_dict`; the step count is a scalar. All keys exist before the first step too, so that the result can be
        loaded into.
        """
        ...

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Take over what `optimizer_state_dict` gave, on this or another layout."""
        ...


@runtime_checkable
class Sharding(Protocol):
    """A sharding strategy. Subclass this class: later versions may add members with bodies."""

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> ShardedModel:
        """Materialise the model unit by unit and lay it out on the ranks of `mesh`."""
        ...
