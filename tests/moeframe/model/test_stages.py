"""Several stages of one rank in one model."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from moeframe.errors import ContractError
from moeframe.model.config import DeepSeekV3Config
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart, ModelStage
from moeframe.model.plan import build_plan
from moeframe.model.stages import StagedModel
from moeframe.model.step_state import StepState
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.precision import Precision

CPU = torch.device("cpu")
ENDS = (
    ModelPart(layers=range(1), has_embedding=True, has_head=False),
    ModelPart(layers=range(2, 3), has_embedding=False, has_head=True),
)
MIDDLE = ModelPart(layers=range(1, 2), has_embedding=False, has_head=False)
IDS = torch.arange(16).view(2, 8)


def part(backends, config: DeepSeekV3Config, which: ModelPart, state: StepState) -> DeepSeekV3:
    policy = Precision.of("float64")
    with torch.device("meta"):
        return DeepSeekV3(config, *backends(config, policy), precision=policy, part=which, step_state=state)


def filled(model) -> None:
    plan = build_plan(model, seed=0)
    for unit in plan.units:
        plan.materialize(unit.name, CPU)


@pytest.fixture
def staged(tiny, backends) -> StagedModel:
    state = StepState()
    model = StagedModel([part(backends, tiny, which, state) for which in ENDS])
    filled(model)
    return model


def test_names_and_values_are_those_of_the_whole_model(staged, make_model) -> None:
    whole = dict(make_model().named_parameters())
    mine = dict(staged.named_parameters())
    assert mine.keys() == {name for name in whole if not name.startswith("blocks.1.")}
    assert all(torch.equal(tensor, whole[name]) for name, tensor in mine.items())
    assert dict(staged.named_buffers()).keys() <= dict(make_model().named_buffers()).keys()
    assert staged.state_dict().keys() == mine.keys() | {n for n, _ in staged.named_buffers() if "bias" in n}


def test_the_plan_lists_units_once_and_names_the_modules_that_a_schedule_calls(staged) -> None:
    plan = build_plan(staged)
    names = [unit.name for unit in plan.units]
    assert len(set(names)) == len(names)
    assert (names[0], names[-2:]) == ("embedding", ["head", ""])
    assert plan.roots == ("stages.0", "stages.1")
    assert [staged.get_submodule(root) for root in plan.roots] == staged.parts
    held = [name for root in staged.parts for name, _ in root.named_parameters()]
    assert sorted(held) == sorted(plan.parameters)


def test_both_ends_and_the_middle_compute_what_the_whole_computes(staged, tiny, backends, make_model) -> None:
    middle = part(backends, tiny, MIDDLE, StepState())
    filled(middle)
    first, last = staged.parts
    output = last(middle(first(IDS)))
    expected = make_model()(IDS)
    torch.testing.assert_close(output.logits, expected.logits)
    torch.testing.assert_close(output.mtp_logits[0], expected.mtp_logits[0])


def test_counters_of_all_stages_come_together_and_bias_steps_reach_all(staged, tiny, make_model) -> None:
    first, last = staged.parts
    last(first(IDS))
    taken = staged.take_counters()
    assert taken.tokens_per_expert.sum(1).tolist() == [0, 16 * 2, 14 * 2]
    assert staged.take_counters().tokens_per_expert.sum() == 0
    loads = torch.zeros(3, tiny.n_routed_experts, dtype=torch.int64)
    loads[:, 0] = 8
    staged.update_expert_bias(loads)
    biases = [buffer for name, buffer in staged.named_buffers() if "bias" in name]
    assert len(biases) == 2
    assert all(bias[0] < 0 < bias[1] for bias in biases)


def test_the_mode_reaches_the_stages_themselves(staged) -> None:
    staged.eval()
    assert not any(module.training for stage in staged.parts for module in stage.modules())
    staged.train()
    assert all(module.training for stage in staged.parts for module in stage.modules())


def test_stages_that_do_not_belong_together_are_refused(tiny, backends) -> None:
    state = StepState()
    first, last = (part(backends, tiny, which, state) for which in ENDS)
    with pytest.raises(ContractError, match="2 stages of a rank must share one step state"):
        StagedModel([first, part(backends, tiny, ENDS[1], StepState())])
    with pytest.raises(ContractError, match="The 0 stages"):
        StagedModel([])
    with pytest.raises(ContractError, match=r"2 stages of this rank hold the embedding\."):
        StagedModel([first, first])
    again = part(backends, tiny, replace(MIDDLE, layers=range(2, 3)), state)
    with pytest.raises(ContractError, match=r"Two stages of this rank hold layer 2\."):
        StagedModel([again, last])


@pytest.mark.parametrize(("modules", "width"), [(0, 32), (2, 64)])
def test_what_stages_hand_on_is_declared_as_it_is(make_model, tiny, backends, modules: int, width: int) -> None:
    config = replace(tiny, num_nextn_predict_layers=modules)
    first = part(backends, config, ENDS[0], StepState())
    filled(first)
    declared = ModelStage(first, num_stages=2).boundary(MicroBatch(input_ids=IDS, targets=IDS))
    handed = first(IDS)
    assert declared.is_meta
    assert declared.shape == handed.shape == (2, 8, width)
    assert declared.dtype == handed.dtype
