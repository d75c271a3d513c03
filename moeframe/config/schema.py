"""The recipe, schema version 1, as frozen dataclasses. Types and field docs only; rules live in `rules.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from moeframe.config.old_names import deprecated, read_by_old_name, takes_old_fields
from moeframe.model.config import DeepSeekV3Config

__all__ = [
    "BACKEND_SECTIONS",
    "CheckpointConfig",
    "ComputeConfig",
    "DataConfig",
    "DebugConfig",
    "DispatcherConfig",
    "LaunchConfig",
    "LearningRateConfig",
    "OnUnavailableConfig",
    "OptimizerConfig",
    "ParallelConfig",
    "Recipe",
    "ScheduleConfig",
    "ShardingConfig",
    "TrainConfig",
    "WatchdogConfig",
]

BACKEND_SECTIONS: Final = ("dispatcher", "sharding", "schedule", "compute", "data")
"""Sections that name a backend; each is the kind of the offers it chooses from."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """Degrees of parallelism. dp_shard = world / (pp x dp_replicate) and edp = data ranks / ep are derived."""

    ep: int = 1
    """Ranks that share the experts of one layer."""
    pp: int = 1
    """Pipeline ranks."""
    layers_per_stage: tuple[int, ...] | None = None
    """Decoder layers of each pipeline stage, in order; null: as even as possible, the first stages hold one more."""
    dp_replicate: int = 1
    """Replicas of the sharded model (hybrid sharding)."""


@takes_old_fields
@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    """Which backend moves tokens to experts."""

    name: str
    """The dispatcher, as `moeframe plugins` lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that dispatcher."""
    use_flex_dispatcher: bool | None = None
    """true demands a dispatcher with the trait `fused`, false one without, null demands nothing; selects nothing."""

    @property
    @deprecated("enable_deepep is called use_flex_dispatcher since 0.2.0; 0.4.0 refuses the old name.")
    def enable_deepep(self) -> bool | None:
        """The old name of `use_flex_dispatcher`."""
        demand: bool | None = read_by_old_name(self, "moeframe.config.schema.DispatcherConfig(enable_deepep)")
        return demand


@dataclass(frozen=True, kw_only=True)
class ShardingConfig:
    """How parameters lie on the ranks."""

    name: str
    """The sharding strategy, as `moeframe plugins` lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that sharding strategy."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """In which order micro-batches run."""

    name: str
    """The schedule, as `moeframe plugins` lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that schedule."""


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Which backend computes linears, norms, experts and attention."""

    name: str
    """The compute backend, as `moeframe plugins` lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that compute backend."""


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the tokens come from."""

    name: str
    """The data set, as `moeframe plugins` lists it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of that data set."""
    repeat: bool = True
    """Start another epoch, in a new seeded order, when the data ends; false: the steps must fit in one epoch."""


@dataclass(frozen=True, kw_only=True)
class OnUnavailableConfig:
    """What takes the place of a backend that this machine cannot use: another one of its kind, with default options.

    A backend cannot be used where a module that it needs is missing, or the job runs on devices of another kind. Wrong
    options are no reason, and one that can be used is never replaced. null: the recipe is refused.
    """

    dispatcher: str | None = None
    """Dispatcher to use where `dispatcher.name` cannot be used."""
    sharding: str | None = None
    """Sharding strategy to use where `sharding.name` cannot be used."""
    schedule: str | None = None
    """Schedule to use where `schedule.name` cannot be used."""
    compute: str | None = None
    """Compute backend to use where `compute.name` cannot be used."""


@dataclass(frozen=True, kw_only=True)
class LearningRateConfig:
    """The V3 schedule (report, section 4.2): linear warm-up, constant, cosine decay, constant, final constant.

    A phase of 0 steps is left out; after the last one the rate stays where it is.
    """

    warmup_steps: int = 0
    """Steps over which the rate rises linearly; the last of them runs at `optimizer.lr`."""
    constant_steps: int | None = None
    """Steps at the peak after the warm-up; null: to the end of the run (then no decay)."""
    decay_steps: int = 0
    """Length of the cosine from the peak to `min_lr`."""
    min_lr: float = 0.0
    """Rate at the end of the decay."""
    min_lr_steps: int | None = None
    """Steps at `min_lr` after the decay; null: to the end of the run."""
    final_lr: float | None = None
    """Rate after `min_lr_steps`; null: stay at `min_lr`."""


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The optimizer."""

    name: Literal["adamw"] = "adamw"
    """The only one."""
    lr: float
    """Peak learning rate."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the means of the gradient and of its square."""
    eps: float = 1e-8
    """Added to the root of the second mean."""
    weight_decay: float = 0.1
    """Decoupled; of every parameter."""
    clip_grad_norm: float | None = 1.0
    """Global L2 norm to clip to; null: never clip."""
    lr_schedule: LearningRateConfig = field(default_factory=LearningRateConfig)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop."""

    steps: int
    """Optimizer steps of the whole run."""
    seq_len: int
    """Tokens in a sequence."""
    global_batch_size: int
    """Sequences in one step, over all ranks."""
    micro_batch_size: int
    """Sequences of one forward on one rank."""
    seed: int = 0
    """Decides the initial weights and the order of the data."""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """bfloat16: computes in bfloat16 over float32 weights."""
    compile: bool = False
    """torch.compile of the phases `attend` and `experts`; the first step takes minutes."""
    recompute: Literal["none", "full", "selective"] = "none"
    """What runs again in the backward to save memory. full: whole decoder layers, which sends every token to its
    experts once more; selective: the phases of `recompute_phases`, which sends nothing."""
    recompute_phases: tuple[Literal["attend", "experts"], ...] = ("attend", "experts")
    """Phases of a layer that `selective` runs again. attend: norms, attention, router; experts: all expert products."""
    eval_every: int = 0
    """Validate after every so many steps and at the end; 0: never."""
    eval_sequences: int = 64
    """Sequences of one validation, over all ranks."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """When a loss or the gradient of a step holds NaN or infinity, on any rank. All ranks do the same before the
    optimizer runs. stop: end the job and name where it arose; skip: leave the step out, count it, and stop after 20
    in a row."""
    loads_every: int = 50
    """Write the load of every expert (loads.jsonl) after every so many steps and after the last one; 0: never."""
    output_dir: str = "runs"
    """Where run directories are made, relative to the working directory."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state of the job is saved. A run that a signal ends saves in any case."""

    every: int = 0
    """Save after every so many steps; 0: not between start and end."""
    final: bool = True
    """Save after the last step."""
    keep: int = 2
    """How many checkpoints stay; older ones are removed once a newer one is whole."""


@dataclass(frozen=True, kw_only=True)
class WatchdogConfig:
    """What happens when a rank makes no progress: its place and the cause are named, and the job ends with exit code 1.

    A process outside of the ranks watches each node, since a stuck rank cannot report.
    """

    enabled: bool = True
    """Watch the job; false: a stuck job stays stuck until torch's own timeout of 10 minutes."""
    action: Literal["stop", "report"] = "stop"
    """stop: end the job once the verdict is written; report: write it once and let the job go on."""
    min_s: float = 30.0
    """Seconds without progress that are never too long."""
    median_steps: float = 20.0
    """A rank may stand still for as many median steps, if that is longer than `min_s`."""
    first_step_s: float = 600.0
    """Seconds without progress that a rank may take until its second step begins, and while torch.compile works."""
    save_s: float = 600.0
    """Seconds without progress while a checkpoint is being saved."""


@dataclass(frozen=True, kw_only=True)
class LaunchConfig:
    """How many processes `moeframe run` expects or starts."""

    nnodes: int = 1
    """Nodes of the job; more than 1 needs torchrun or Slurm to start it."""
    nproc_per_node: int = 1
    """Processes on each node; on GPUs each has one."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda where torch finds a GPU for every local process, else cpu."""


@dataclass(frozen=True, kw_only=True)
class DebugConfig:
    """Costly checks of a running job. They change no number."""

    poison: bool = False
    """Fill memory that was allocated but not yet written with NaN, and stop at the first phase that lets one through.
    Tokens per second fall."""
    ledger: bool = False
    """Compare every collective between its ranks before data moves. All collectives wait for one another then."""
    ledger_timeout_s: float = 120.0
    """Seconds that the ledger waits for a rank that does not come."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A whole recipe."""

    schema_version: Literal[1]
    """Version of this schema."""
    name: str
    """Run directories are named after it."""
    model: DeepSeekV3Config
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    dispatcher: DispatcherConfig
    sharding: ShardingConfig
    schedule: ScheduleConfig
    compute: ComputeConfig
    data: DataConfig
    on_unavailable: OnUnavailableConfig = field(default_factory=OnUnavailableConfig)
    optimizer: OptimizerConfig
    train: TrainConfig
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    watchdog: WatchdogConfig = field(default_factory=WatchdogConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    debug: DebugConfig = field(default_factory=DebugConfig)

    @property
    def world_size(self) -> int:
        """Processes of the job."""
        return self.launch.nnodes * self.launch.nproc_per_node

    @property
    def backends(self) -> dict[str, str]:
        """The backend that each section names, by section: dispatcher, sharding, schedule, compute, data."""
        return {kind: getattr(self, kind).name for kind in BACKEND_SECTIONS}
