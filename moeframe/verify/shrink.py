"""The recipe at toy size, the same in kind: what is there stays there, what is several stays several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from moeframe.config.compose import Composition
from moeframe.config.schema import (
    ComputeConfig,
    DataConfig,
    DispatcherConfig,
    LaunchConfig,
    OptimizerConfig,
    ParallelConfig,
    Recipe,
    ScheduleConfig,
    ShardingConfig,
    TrainConfig,
)
from moeframe.model.config import DeepSeekV3Config
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.verify.reference.plugin import REFERENCE

__all__ = ["STEPS", "num_sequences", "reference_of", "shrink"]

STEPS: Final = 2
"""Optimizer steps of every job: the second one sees what the first left behind."""

_EXPERTS: Final = 8
_SEQ_LEN: Final = 12
_VOCABULARY: Final = 32
_CLIP: Final = 0.5
"""Below the norm of any first step of the toy model, so that clipping is seen to act."""


def shrink(composition: Composition) -> Recipe:
    """Return the recipe in float64 on the CPU with a toy model, as one process; `layouts` spreads it over more.

    Sizes go down; what the recipe has (groups, shared experts, query compression, dense first layers, MTP depth,
    capacity, forced routing, clipping, frozen biases) stays, and so do the options of every backend. Loss weights and
    speeds that are small at full scale are raised, so that their effect is seen.
    """
    recipe, traits = composition.recipe, composition.dispatcher.traits
    stages = composition.schedule.traits.stages_per_rank * max(2, composition.schedule.traits.min_ranks)
    stages = stages if composition.schedule.traits.pipelines else 1
    model = _model(recipe.model, traits, stages)
    uneven = recipe.parallel.layers_per_stage is not None
    if uneven and stages > 1:
        model = replace(model, num_hidden_layers=stages + 1)
    data_options = {"padding": traits.supports_capacity_drop, "forced_routing": composition.data.traits.forces_routing}
    clip = recipe.optimizer.clip_grad_norm
    return replace(
        recipe,
        name="verify",
        model=model,
        parallel=ParallelConfig(layers_per_stage=_uneven(stages) if uneven and stages > 1 else None),
        data=DataConfig(name=REFERENCE, options=data_options),
        optimizer=OptimizerConfig(
            lr=1e-2,
            betas=recipe.optimizer.betas,
            eps=max(recipe.optimizer.eps, 1e-8),  # smaller ones blow the last bits of small gradients up
            weight_decay=recipe.optimizer.weight_decay,
            clip_grad_norm=None if clip is None else _CLIP,
        ),
        train=replace(
            recipe.train,
            steps=STEPS,
            seq_len=-(-_SEQ_LEN // traits.token_multiple) * traits.token_multiple,
            global_batch_size=1,
            micro_batch_size=1,
            precision="float64",
            eval_every=0,
            eval_sequences=TrainConfig.eval_sequences,
            compile=False,  # what is traced is the same mathematics, and tracing takes minutes
        ),
        launch=LaunchConfig(nnodes=1, nproc_per_node=1, device="cpu"),
    )


def reference_of(shrunk: Recipe, global_batch_size: int) -> Recipe:
    """Return the recipe of the oracle: one process, reference parts, the whole batch at once, no extras."""
    return Recipe(
        schema_version=1,
        name="verify-reference",
        model=shrunk.model,
        dispatcher=DispatcherConfig(name=REFERENCE),
        sharding=ShardingConfig(name=REFERENCE),
        schedule=ScheduleConfig(name=REFERENCE),
        compute=ComputeConfig(name=REFERENCE),
        data=with_sequences(shrunk, global_batch_size).data,
        optimizer=shrunk.optimizer,
        train=TrainConfig(
            steps=STEPS,
            seq_len=shrunk.train.seq_len,
            global_batch_size=global_batch_size,
            micro_batch_size=global_batch_size,
            seed=shrunk.train.seed,
            precision="float64",
        ),
        launch=shrunk.launch,
    )


def with_sequences(recipe: Recipe, global_batch_size: int) -> Recipe:
    """Return the recipe with just as many sequences as its steps read."""
    options: Mapping[str, object] = {**recipe.data.options, "num_sequences": num_sequences(global_batch_size)}
    return replace(recipe, data=replace(recipe.data, options=options))


def num_sequences(global_batch_size: int) -> int:
    """Return the sequences of all steps."""
    return STEPS * global_batch_size


def _model(model: DeepSeekV3Config, traits: DispatcherTraits, stages: int) -> DeepSeekV3Config:
    dense_only = model.first_k_dense_replace >= model.num_hidden_layers
    dense = min(model.first_k_dense_replace, 1)
    layers = max(stages, dense + 2)
    groups, kept = _groups(model)
    reachable = _EXPERTS // groups * kept
    top_k = min(model.num_experts_per_tok, 3, reachable, traits.max_topk or reachable)
    hidden = traits.hidden_multiple
    return replace(
        model,
        vocab_size=_VOCABULARY,
        hidden_size=-(-max(24, traits.min_hidden) // hidden) * hidden,
        num_hidden_layers=layers,
        first_k_dense_replace=layers if dense_only else dense,
        intermediate_size=20,
        moe_intermediate_size=12,
        n_routed_experts=_EXPERTS,
        num_experts_per_tok=top_k,
        n_group=groups,
        topk_group=kept,
        n_shared_experts=min(model.n_shared_experts, 2),
        num_attention_heads=min(model.num_attention_heads, 2),
        q_lora_rank=None if model.q_lora_rank is None else 10,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=6,
        initializer_range=0.25,  # at the width of 24, scores of the router spread over (0, 1)
        num_nextn_predict_layers=min(model.num_nextn_predict_layers, 2),
        aux_loss_alpha=max(model.aux_loss_alpha, 1e-2) if model.aux_loss_alpha else 0.0,
        bias_update_speed=_speed(model),
        capacity_factor=None if model.capacity_factor is None else min(model.capacity_factor, 1.0),
        max_position_embeddings=max(model.max_position_embeddings, 2 * _SEQ_LEN, 2 * traits.token_multiple),
        init_from=None,
        init_from_differs=(),
    )


def _groups(model: DeepSeekV3Config) -> tuple[int, int]:
    """Return n_group and topk_group: none, all kept, one kept, or some."""
    if model.n_group == 1:
        return 1, 1
    if model.topk_group == model.n_group:
        return 4, 4
    return 4, 1 if model.topk_group == 1 else 2


def _speed(model: DeepSeekV3Config) -> float:
    """Return a speed whose first steps change routings; 0 stays 0, and where there is no bias the default stays."""
    if model.topk_method != "noaux_tc" or not model.bias_update_speed:
        return model.bias_update_speed
    return max(model.bias_update_speed, 1e-2)


def _uneven(stages: int) -> tuple[int, ...]:
    """Return layers of each stage where the recipe gives them: the last stage holds one more."""
    return (*(1 for _ in range(stages - 1)), 2)
