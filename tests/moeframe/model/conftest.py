"""Small models with the reference backends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch
from moeframe_collectives.local import LocalDispatcher
from moeframe_collectives.options import LocalOptions
from moeframe_torch_compute.compute import TorchCompute
from moeframe_torch_compute.options import TorchComputeOptions

from moeframe.model.config import DeepSeekV3Config
from moeframe.model.deepseek_v3 import DeepSeekV3
from moeframe.model.plan import fill_model
from moeframe.protocols.compute import ComputeContext
from moeframe.protocols.dispatcher import Dispatcher, DispatcherContext
from moeframe.protocols.precision import DtypeName, Precision

CPU = torch.device("cpu")

TINY = DeepSeekV3Config(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=3,
    first_k_dense_replace=1,
    intermediate_size=48,
    moe_intermediate_size=16,
    n_routed_experts=8,
    num_experts_per_tok=2,
    n_shared_experts=1,
    num_attention_heads=2,
    q_lora_rank=24,
    kv_lora_rank=16,
    qk_nope_head_dim=16,
    qk_rope_head_dim=8,
    v_head_dim=16,
    n_group=4,
    topk_group=2,
    routed_scaling_factor=2.5,
    max_position_embeddings=64,
    num_nextn_predict_layers=1,
    initializer_range=0.1,
)


class ModelMaker(Protocol):
    """Builds a filled model."""

    def __call__(self, *, precision: DtypeName = "float64", seed: int = 0, **changes: Any) -> DeepSeekV3: ...


class Backends(Protocol):
    """Builds the reference backends of a model."""

    def __call__(self, config: DeepSeekV3Config, precision: Precision) -> tuple[TorchCompute, Dispatcher]: ...


def _backends(config: DeepSeekV3Config, precision: Precision) -> tuple[TorchCompute, Dispatcher]:
    compute = TorchCompute(TorchComputeOptions(), ComputeContext(precision=precision, device=CPU))
    context = DispatcherContext(
        ep_axis="ep",
        ep_size=1,
        ep_rank=0,
        ep_group=None,
        num_experts=config.n_routed_experts,
        hidden_size=config.hidden_size,
        top_k=config.num_experts_per_tok,
        max_tokens=config.max_position_embeddings,
        dtype=precision.dtype("compute"),
        device=CPU,
    )
    return compute, LocalDispatcher(LocalOptions(), context)


@pytest.fixture
def backends() -> Backends:
    return _backends


@pytest.fixture
def tiny() -> DeepSeekV3Config:
    return TINY


@pytest.fixture
def make_model() -> ModelMaker:
    def make(*, precision: DtypeName = "float64", seed: int = 0, **changes: Any) -> DeepSeekV3:
        config = replace(TINY, **changes)
        policy = Precision.of(precision)
        with torch.device("meta"):
            model = DeepSeekV3(config, *_backends(config, policy), precision=policy)
        fill_model(model, CPU, seed=seed)
        return model

    return make


@pytest.fixture
def fixture_dir() -> Path:
    return Path(__file__).parents[2] / "data" / "dsv3_parity"
