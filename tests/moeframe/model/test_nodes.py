"""The model as nodes: the same loss, the right order, and what may be freed."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from moeframe.errors import ContractError
from moeframe.model.block import recompute_blocks
from moeframe.model.deepseek_v3 import DeepSeekV3, ModelPart, ModelStage
from moeframe.model.nodes import Kept
from moeframe.model.recompute import Recompute
from moeframe.protocols.compute import ComputeTraits
from moeframe.protocols.data import MicroBatch
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.precision import Precision

FREE = Kept(dispatch_input=False, expert_input=False, expert_output=False, own_output=False)


@pytest.fixture
def batch() -> MicroBatch:
    ids = torch.randint(64, (2, 8), generator=torch.Generator().manual_seed(0))
    ahead = torch.roll(ids, -1, 1)
    return MicroBatch(input_ids=ids, targets=ahead, mtp_targets=(torch.roll(ids, -2, 1),))


def stage_of(model, kept: Kept | None = None) -> ModelStage:
    model.step_state.begin(loss_tokens=16, mtp_tokens=(14,), valid_tokens=16)
    return ModelStage(model, kept=kept)


def frees(stage: ModelStage, batch: MicroBatch, layer: int = 1) -> set[str]:
    return {name for node in stage.nodes(batch) if node.layer == layer for name in node.frees}


def test_nodes_one_after_the_other_are_forward_and_loss(make_model, batch) -> None:
    stage = stage_of(make_model())
    values: dict[str, torch.Tensor] = {}
    nodes = stage.nodes(batch)
    for node in nodes:
        outputs = node(*(values[name] for name in node.takes))
        values |= zip(node.gives, outputs, strict=True)
    assert nodes[-1].gives == ("loss",)
    assert torch.equal(values["loss"], stage.loss(stage.forward(None, batch), batch))
    sums = stage.result()
    assert sums.ce_sum > 0


def test_nodes_name_phases_layers_and_streams(make_model, batch) -> None:
    nodes = stage_of(make_model()).nodes(batch)
    moe = [(phase, "communication" if phase in ("dispatch", "combine") else "compute") for phase in PHASES]
    layers = {layer: [(node.phase, node.stream) for node in nodes if node.layer == layer] for layer in range(4)}
    assert layers == {0: [("attend", "compute"), ("experts", "compute")], 1: moe, 2: moe, 3: moe}
    assert [node.phase for node in (nodes[0], nodes[-1])] == ["embed", "head"]
    given: set[str] = set()
    for node in nodes:
        assert given.issuperset(node.takes)
        given.update(node.gives)


PHASES = ("attend", "dispatch", "experts", "combine")


def test_what_is_freed_follows_from_what_is_kept(make_model, batch) -> None:
    model = make_model(precision="bfloat16")
    rows, routed, own, x = "1.rows_RD", "1.routed_RD", "1.own_BSD", "1.x_BSD"
    assert frees(stage_of(model), batch) == set()
    # the shared expert reads the norm
    assert frees(stage_of(model, FREE), batch) == {rows, routed, own}
    assert frees(stage_of(model, dataclasses.replace(FREE, expert_input=True)), batch) == {routed, own}
    assert frees(stage_of(model, dataclasses.replace(FREE, expert_output=True)), batch) == {rows, own}
    assert frees(stage_of(model, dataclasses.replace(FREE, own_output=True)), batch) == {rows, routed}
    alone = make_model(precision="bfloat16", n_shared_experts=0)
    assert frees(stage_of(alone, FREE), batch) == {x, rows, routed}
    assert frees(stage_of(alone, dataclasses.replace(FREE, dispatch_input=True)), batch) == {rows, routed}


def test_a_router_in_the_dtype_of_its_input_keeps_it(make_model, batch) -> None:
    alone = make_model(n_shared_experts=0)
    assert alone.precision.high == alone.precision.compute
    assert frees(stage_of(alone, FREE), batch) == {"1.rows_RD", "1.routed_RD"}


def test_a_recomputed_phase_keeps_its_inputs(make_model, batch) -> None:
    model = make_model(precision="bfloat16")
    recompute_blocks(model, Recompute(phases=frozenset({"experts"})))
    assert frees(stage_of(model, FREE), batch) == {"1.routed_RD", "1.own_BSD"}


@pytest.mark.parametrize("field", ["keeps_dispatch_input", "keeps_expert_input", "keeps_combine_input"])
def test_one_that_keeps_a_tensor_is_enough(field: str) -> None:
    compute = ComputeTraits(
        saves_expert_input=False, splits_expert_backward=False, saves_expert_output=False, saves_norm_output=False
    )
    names = ("keeps_dispatch_input", "keeps_expert_input", "keeps_combine_input")
    fields = ("dispatch_input", "expert_input", "expert_output")
    traits = DispatcherTraits(
        fused=False, host_syncs_per_layer=0, deterministic=True, **{name: name == field for name in names}
    )
    kept = dataclasses.asdict(Kept.by(traits, compute))
    assert kept == {"own_output": False, **{f: name == field for f, name in zip(fields, names, strict=True)}}
    cautious = ComputeTraits(saves_expert_input=True, splits_expert_backward=False)
    assert Kept.by(traits, cautious) == Kept()


def test_a_part_of_a_model_and_whole_blocks_are_refused(make_model, tiny, backends, batch) -> None:
    precision = Precision.of("float64")
    part = ModelPart(layers=range(2), has_embedding=True, has_head=False)
    with torch.device("meta"):
        half = DeepSeekV3(tiny, *backends(tiny, precision), precision=precision, part=part)
    with pytest.raises(ContractError, match="only the whole model can"):
        stage_of(half).nodes(batch)
    model = make_model()
    recompute_blocks(model, Recompute(block=True))
    with pytest.raises(ContractError, match="recomputed as a whole"):
        stage_of(model).nodes(batch)
