"""The plan lists every parameter once, in units that a sharding strategy can fill one by one."""

from __future__ import annotations

import pytest
import torch

from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart
from moeframe.model.plan import build_plan, fill_model
from moeframe.protocols.precision import Precision

CPU = torch.device("cpu")


@pytest.fixture
def meta(tiny, backends):
    """Build an unfilled model."""

    def make(config=tiny, precision="float32", **arguments):
        policy = Precision.of(precision)
        with torch.device("meta"):
            return DeepSeekV3(config, *backends(config, policy), precision=policy, **arguments)

    return make


def test_units_come_in_the_order_of_execution_with_the_root_last(meta):
    layer = ["attend.router", "attend", "experts.routed", "experts"]
    assert [unit.name for unit in build_plan(meta()).units] == [
        "embedding",
        "blocks.0.attend",
        "blocks.0.experts",
        *(f"blocks.1.{phase}" for phase in layer),
        *(f"blocks.2.{phase}" for phase in layer),
        *(f"mtp.0.block.{phase}" for phase in layer),
        "mtp.0",
        "head",
        "",
    ]


def test_every_parameter_belongs_to_exactly_one_unit_that_states_its_role(meta):
    model = meta()
    plan = build_plan(model)
    listed = [name for unit in plan.units for name in unit.parameters]
    assert sorted(listed) == sorted(name for name, _ in model.named_parameters())
    assert len(listed) == len(set(listed))
    for unit in plan.units:
        assert unit.parameters
        assert unit.roles == {plan.role(name) for name in unit.parameters}
        assert unit.high_precision == (unit.roles == {"router"})
    assert plan.role("embedding.weight") == "embedding"
    assert plan.role("head.weight") == "dense"
    assert plan.role("blocks.1.attend.router.weight") == "router"
    assert plan.role("mtp.0.block.experts.routed.down_proj") == "expert"
    assert plan.role("blocks.1.experts.shared.down_proj.weight") == "dense"


def test_global_shape_counts_the_experts_of_all_ranks(meta):
    model = meta(ep_size=4, ep_rank=1)
    parameter = build_plan(model).parameters["blocks.1.experts.routed.gate_up_proj"]
    assert parameter.global_shape == (8, 32, 32)
    assert model.get_parameter(parameter.name).shape == (2, 32, 32)


def test_a_unit_is_filled_without_the_others(meta):
    model = meta()
    build_plan(model).materialize("blocks.1.attend.router", CPU)
    filled = {name for name, tensor in model.state_dict().items() if not tensor.is_meta}
    router = "blocks.1.attend.router"
    assert filled == {f"{router}.weight", f"{router}.e_score_correction_bias"}


def test_every_ep_layout_gets_the_same_weights(meta):
    whole = meta()
    fill_model(whole, CPU, seed=5)
    for ep in (2, 4):
        for rank in range(ep):
            part = meta(ep_size=ep, ep_rank=rank)
            fill_model(part, CPU, seed=5)
            for name, tensor in part.state_dict().items():
                wanted = whole.state_dict()[name]
                if ".routed." in name:
                    wanted = wanted.chunk(ep)[rank]
                assert torch.equal(tensor, wanted), name


def test_pipeline_parts_get_the_weights_of_the_whole(meta):
    whole = meta()
    fill_model(whole, CPU, seed=5)
    parts = [
        ModelPart(layers=range(2), has_embedding=True, has_head=False),
        ModelPart(layers=range(2, 3), has_embedding=False, has_head=True),
    ]
    names = set()
    for part in parts:
        model = meta(part=part)
        fill_model(model, CPU, seed=5)
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, whole.state_dict()[name])
            names.add(name)
    assert names == whole.state_dict().keys()


def test_a_bfloat16_job_keeps_float32_weights(meta):
    model = meta(precision="bfloat16")
    fill_model(model, CPU)
    assert {tensor.dtype for tensor in model.state_dict().values()} == {torch.float32}
    assert model(torch.zeros(1, 3, dtype=torch.int64)).logits.dtype == torch.bfloat16
