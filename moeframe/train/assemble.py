"""From a recipe to a job, one line a step. Read this file first: it tells the whole story.

recipe -> checked recipe -> plugins -> composition -> processes -> mesh -> model -> shards -> schedule -> data -> loop
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, overload

import torch
import torch.distributed as dist

from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe, read_recipe, with_overrides
from moeframe.config.old_names import ABSENT, Absent, carried_over, deprecated
from moeframe.config.schema import OnUnavailableConfig, Recipe, TrainConfig
from moeframe.debug.ledger import Ledger, ledger
from moeframe.debug.poison import poisoned
from moeframe.errors import JobFailedError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import PluginHost, build_plugin_manager
from moeframe.launch.environment import World
from moeframe.launch.group import choose_device, joined, this_process
from moeframe.mesh.build import build_meshes
from moeframe.model.block import recompute_blocks
from moeframe.model.compiling import compile_phases
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart, ModelStage
from moeframe.model.nodes import Kept
from moeframe.model.plan import Weights, build_plan
from moeframe.model.recompute import Recompute
from moeframe.model.stages import StagedModel
from moeframe.model.step_state import StepState
from moeframe.protocols.compute import Compute, ComputeContext
from moeframe.protocols.data import Dataset, DatasetContext
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext
from moeframe.protocols.schedule import Schedule, ScheduleContext, Stage
from moeframe.protocols.sharding import AdamWSettings, Meshes, ShardedModel
from moeframe.schedule.placement import split_layers, stages_of_rank
from moeframe.train.data import require_enough
from moeframe.train.run_directory import RunDirectory
from moeframe.train.trainer import Summary, Trainer

__all__ = ["Job", "assemble", "schedule_context"]


@dataclass(kw_only=True)
class Job:
    """A composed job on this rank, ready to train. A context manager: leaving it frees buffers and process groups."""

    recipe: Recipe
    composition: Composition
    host: PluginHost
    world: World
    meshes: Meshes
    dispatcher: Dispatcher
    model: DeepSeekV3 | StagedModel
    sharded: ShardedModel
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    stages: Sequence[Stage]
    train_data: Dataset
    validation_data: Dataset
    ledger: Ledger | None = None
    """Of collectives, with `debug.ledger`."""
    _open: ExitStack

    def train(self, run_dir: Path | None = None, *, resume_step: int = 0, progress: bool = True) -> Summary:
        """Run every step of the recipe, from the checkpoint of `resume_step` on unless that is 0.

        Rank 0 writes metrics, all ranks checkpoints, when `run_dir` is an existing run directory.
        """
        place = None if run_dir is None else RunDirectory(run_dir)
        return Trainer(self, place, resume_step=resume_step, progress=progress).run()

    def __enter__(self) -> Self:
        """Return the job."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Free what the job holds."""
        self._open.__exit__(kind, error, at)


@overload
def assemble(
    recipe: str | Path | Recipe | LoadedRecipe,
    *,
    use_flex_dispatcher: bool | None = None,
    plugins: Sequence[str] = (),
) -> Job: ...
@overload
@deprecated("enable_deepep is called use_flex_dispatcher since 0.2.0; 0.4.0 refuses the old name.")
def assemble(
    recipe: str | Path | Recipe | LoadedRecipe, *, plugins: Sequence[str] = (), enable_deepep: bool | None
) -> Job: ...
def assemble(
    recipe: str | Path | Recipe | LoadedRecipe,
    *,
    use_flex_dispatcher: bool | None = None,
    plugins: Sequence[str] = (),
    enable_deepep: bool | Absent | None = ABSENT,
) -> Job:
    """Compose a recipe into a job on this rank.

    Every process of the job calls this; `moeframe run`, torchrun or Slurm start them. A default process group that the
    caller has made is used as it is. A recipe for one process needs no launcher.

    Args:
        recipe: a recipe file, or a recipe already loaded.
        use_flex_dispatcher: overrides the recipe's `dispatcher.use_flex_dispatcher`: true demands a fused dispatcher,
            false one that is not fused, None leaves the recipe's own demand. Selects nothing.
        plugins: modules of plugins that are not installed, by name.
        enable_deepep: the old name of `use_flex_dispatcher`; 0.4.0 refuses it.

    Raises:
        RecipeError: the recipe is wrong, or its parts do not fit together; holds every problem.
        PluginError: a plugin is broken or a backend is not to be had.
        TopologyError: this process is not one of as many as the recipe wants.
        TypeError: both names of one parameter are given, and differ.
    """
    demand = carried_over("moeframe.assemble(enable_deepep)", enable_deepep, use_flex_dispatcher, unset=None)
    loaded = _loaded(recipe, demand)
    host = build_plugin_manager(plugins, wanted=loaded.backends)
    world = this_process()
    device = choose_device(loaded.recipe.launch.device, world)
    composition = compose(loaded, Catalog(host), world_size=world.world_size, device_kind=device.type)
    return _build(composition, host, world, device)


def _build(composition: Composition, host: PluginHost, world: World, device: torch.device) -> Job:
    """Build every part, each from the ones before it."""
    recipe, precision = composition.recipe, composition.precision
    with ExitStack() as stack:
        stack.enter_context(joined(world, device))
        _require_same_backends(composition)
        entries = stack.enter_context(ledger(recipe.debug.ledger_timeout_s)) if recipe.debug.ledger else None
        if recipe.debug.poison:
            stack.enter_context(poisoned())
        meshes = build_meshes(composition.degrees, device)
        dispatcher = composition.dispatcher.build(_dispatcher_context(composition, meshes))
        stack.push(partial(_release, dispatcher))
        compute = composition.compute.build(ComputeContext(precision=precision, device=device))
        parts = _parts(composition, compute, dispatcher, meshes)
        model = next(iter(parts.values())) if len(parts) == 1 else StagedModel(list(parts.values()))
        recompute_blocks(model, _recompute(recipe.train))
        if entries is not None:
            entries.know(model)
        if recipe.train.compile:
            compile_phases(model)
        plan = build_plan(model, seed=recipe.train.seed, source=_weights(recipe))
        sharded = composition.sharding.build().shard(model, plan, meshes, precision)
        optimizer = sharded.optimizer(_optimizer_settings(recipe))
        schedule = composition.schedule.build(schedule_context(composition, meshes))
        train_data, validation_data = _data(composition, "train", world), _data(composition, "validation", world)
        _require_data(recipe, train_data, validation_data)
        return Job(
            recipe=recipe,
            composition=composition,
            host=host,
            world=world,
            meshes=meshes,
            dispatcher=dispatcher,
            model=model,
            sharded=sharded,
            optimizer=optimizer,
            schedule=schedule,
            stages=_stages(composition, parts, sharded),
            train_data=train_data,
            validation_data=validation_data,
            ledger=entries,
            _open=stack.pop_all(),
        )


def _require_same_backends(composition: Composition) -> None:
    """Compare what the ranks put in place of backends that they cannot use; collective where anything is named."""
    if composition.recipe.on_unavailable == OnUnavailableConfig() or not dist.is_initialized():
        return
    chosen: list[list[str]] = [[]] * dist.get_world_size()
    dist.all_gather_object(chosen, [str(one) for one in composition.substitutions])
    for rank, others in enumerate(chosen):
        if others != chosen[0]:
            told = (f"rank {number}: {'; '.join(chosen[number]) or 'nothing is substituted'}" for number in (0, rank))
            raise JobFailedError(
                f"on_unavailable: the ranks do not choose the same backends. {'. '.join(told)}. Make the machines of "
                "the job alike, or name the backend that all of them can use."
            )


def _release(dispatcher: Dispatcher, kind: type[BaseException] | None, *_: object) -> None:
    """Free communication buffers, which may take all ranks; after a failure some of them are gone."""
    if kind is None:
        dispatcher.release()


def _loaded(recipe: str | Path | Recipe | LoadedRecipe, demand: bool | None) -> LoadedRecipe:  # noqa: FBT001
    if isinstance(recipe, str | Path):
        loaded = read_recipe(recipe)
    else:
        loaded = recipe if isinstance(recipe, LoadedRecipe) else LoadedRecipe.of(recipe)
    if demand is None:
        return loaded
    origin = "assemble(use_flex_dispatcher=...)"
    return with_overrides(loaded, {"dispatcher.use_flex_dispatcher": demand}, origin=origin)


def _dispatcher_context(composition: Composition, meshes: Meshes) -> DispatcherContext:
    recipe = composition.recipe
    return DispatcherContext(
        ep_axis="ep",
        ep_size=meshes.size("ep"),
        ep_rank=meshes.rank("ep"),
        ep_group=meshes.group("ep"),
        num_experts=recipe.model.n_routed_experts,
        hidden_size=recipe.model.hidden_size,
        top_k=recipe.model.num_experts_per_tok,
        max_tokens=recipe.train.micro_batch_size * recipe.train.seq_len,
        dtype=composition.precision.dtype("compute"),
        device=meshes.device,
    )


def _parts(composition: Composition, compute: Compute, dispatcher: Dispatcher, meshes: Meshes) -> dict[int, DeepSeekV3]:
    """Build this rank's stages, by number, without memory; the sharding strategy fills them unit by unit."""
    traits, model = composition.schedule.traits, composition.recipe.model
    split = split_layers(model.num_hidden_layers, composition.num_stages, composition.recipe.parallel.layers_per_stage)
    mine = stages_of_rank(meshes.rank("pp"), meshes.size("pp"), traits.stages_per_rank, traits.placement)
    state = StepState()
    with torch.device("meta"):
        return {
            stage: DeepSeekV3(
                model,
                compute,
                dispatcher,
                precision=composition.precision,
                ep_size=meshes.size("ep"),
                ep_rank=meshes.rank("ep"),
                part=ModelPart(
                    layers=split[stage], has_embedding=stage == 0, has_head=stage == composition.num_stages - 1
                ),
                step_state=state,
            )
            for stage in mine
        }


def _stages(composition: Composition, parts: dict[int, DeepSeekV3], sharded: ShardedModel) -> list[Stage]:
    kept = Kept.by(composition.dispatcher.traits, composition.compute.traits)
    stages = composition.num_stages
    return [ModelStage(part, index=i, num_stages=stages, kept=kept, sharded=sharded) for i, part in parts.items()]


def _recompute(train: TrainConfig) -> Recompute:
    phases = train.recompute_phases if train.recompute == "selective" else ()
    return Recompute(block=train.recompute == "full", phases=frozenset(phases))


def _weights(recipe: Recipe) -> Weights | None:
    if recipe.model.init_from is None:
        return None
    from moeframe.model.hf_load import HfSource

    return HfSource(Path(recipe.model.init_from), recipe.model)


def _optimizer_settings(recipe: Recipe) -> AdamWSettings:
    chosen = recipe.optimizer
    return AdamWSettings(lr=chosen.lr, betas=chosen.betas, eps=chosen.eps, weight_decay=chosen.weight_decay)


def schedule_context(composition: Composition, meshes: Meshes) -> ScheduleContext:
    """Return what a schedule of this job is built for."""
    return ScheduleContext(
        pp_size=meshes.size("pp"),
        pp_rank=meshes.rank("pp"),
        pp_group=meshes.group("pp"),
        num_micro_batches=composition.num_micro_batches,
        device=meshes.device,
        freeing="poison" if composition.recipe.debug.poison else "release",
    )


def _data(composition: Composition, split: Literal["train", "validation"], world: World) -> Dataset:
    recipe = composition.recipe
    dataset: Dataset = composition.data.build(
        DatasetContext(
            seq_len=recipe.train.seq_len,
            vocab_size=recipe.model.vocab_size,
            seed=recipe.train.seed,
            split=split,
            num_experts=recipe.model.n_routed_experts,
            top_k=recipe.model.num_experts_per_tok,
            local_rank=world.local_rank,
        )
    )
    return dataset


def _require_data(recipe: Recipe, train_data: Dataset, validation_data: Dataset) -> None:
    train, data = recipe.train, recipe.data
    require_enough(
        train_data, name=data.name, steps=train.steps, global_batch_size=train.global_batch_size, repeat=data.repeat
    )
    if train.eval_every:
        require_enough(validation_data, name=f"{data.name} (validation)", steps=1, global_batch_size=1, repeat=True)
