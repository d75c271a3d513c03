"""Offers the compute backend `te`. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from moeframe.errors import Problem
from moeframe.hooks import ComputeOffer, ModuleNeed, Needs, Offer, hookimpl
from moeframe.hooks.needs import unusable_reasons, why_no_cuda
from moeframe.protocols.compute import Compute, ComputeContext, ComputeTraits
from moeframe_transformer_engine.installation import INSTALL, VERSION, disagreements
from moeframe_transformer_engine.options import TransformerEngineOptions

if TYPE_CHECKING:
    from moeframe.config.schema import Recipe
    from moeframe.protocols.precision import Precision

FP8_SIZE_MULTIPLE: Final = 16
"""FP8 products want every dimension of a matrix to be a multiple of this."""


def _build(options: TransformerEngineOptions, context: ComputeContext) -> Compute:
    from moeframe_transformer_engine.compute import TransformerEngineCompute
    from moeframe_transformer_engine.loading import load

    return TransformerEngineCompute(options, context, load())


def _traits(options: TransformerEngineOptions, precision: Precision) -> ComputeTraits:  # noqa: ARG001
    return ComputeTraits(
        saves_expert_input=options.precision == "bfloat16",  # FP8 saves a cast copy
        splits_expert_backward=True,
        saves_expert_output=False,
        saves_norm_output=False,
        dtypes=("bfloat16",),  # its float32 products round to TF32
    )


def _sizes(recipe: Recipe) -> Iterator[tuple[str, str, int]]:
    """Yield (key, what it makes, size) for every width of a linear layer or an expert."""
    model = recipe.model
    heads, rope, nope, value = (
        model.num_attention_heads,
        model.qk_rope_head_dim,
        model.qk_nope_head_dim,
        model.v_head_dim,
    )
    for key in ("hidden_size", "intermediate_size", "moe_intermediate_size", "q_lora_rank", "kv_lora_rank"):
        if (size := getattr(model, key)) is not None:
            yield f"model.{key}", key, size
    yield "model.kv_lora_rank", "kv_lora_rank + qk_rope_head_dim", model.kv_lora_rank + rope
    for what, size in (
        ("qk_nope_head_dim + qk_rope_head_dim", nope + rope),
        ("qk_nope_head_dim + v_head_dim", nope + value),
        ("v_head_dim", value),
    ):
        yield "model.num_attention_heads", f"num_attention_heads x ({what})", heads * size


def _fp8_problems(recipe: Recipe) -> Iterator[Problem]:
    """Yield what keeps this recipe, or this machine, from FP8."""
    instead = "Or use compute.options.precision=bfloat16."
    able = Offer(name="te", summary="", build=_build, needs=Needs(device_kinds=("cuda",), compute_capability=(9, 0)))
    for reason in () if why_no_cuda() else unusable_reasons(able, device_kind="cuda"):
        yield Problem(path="compute.options.precision", message=f"given fp8_blockwise; {reason}", fix=instead)
    for key, what, size in _sizes(recipe):
        if size % FP8_SIZE_MULTIPLE:
            below = size // FP8_SIZE_MULTIPLE * FP8_SIZE_MULTIPLE
            yield Problem(
                path=key,
                message=f"given a model whose {what} is {size}; with compute.options.precision=fp8_blockwise it must "
                f"be a multiple of {FP8_SIZE_MULTIPLE}.",
                fix=f"Nearest: {f'{below} or ' if below else ''}{below + FP8_SIZE_MULTIPLE}. {instead}",
            )


@hookimpl
def moeframe_check_recipe(recipe: Recipe) -> Sequence[Problem]:
    """Refuse parts of Transformer Engine that disagree, and what FP8 products do not take."""
    if recipe.compute.name != "te":
        return []
    problems = [Problem(path="compute.name", message=f"given 'te'; {found}", fix="") for found in disagreements()]
    if recipe.compute.options.get("precision") == "fp8_blockwise":
        problems += _fp8_problems(recipe)
    return problems


@hookimpl
def moeframe_offer_computes() -> Sequence[ComputeOffer]:
    """Offer the backend on Transformer Engine."""
    return [
        ComputeOffer(
            name="te",
            summary="Transformer Engine: linears, RMSNorm and grouped experts in bfloat16 or blockwise FP8",
            build=_build,
            traits=_traits,
            options=TransformerEngineOptions,
            needs=Needs(
                modules=(
                    ModuleNeed(
                        name="transformer_engine",
                        distribution="transformer-engine",
                        version=VERSION,
                        install=INSTALL,
                    ),
                ),
                device_kinds=("cuda",),
            ),
        )
    ]
