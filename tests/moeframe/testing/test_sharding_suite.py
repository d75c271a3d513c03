"""The conformance kit: each fault that a sharding can have is found, and its message names what differs and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from moeframe_torch_sharding.fsdp2 import Fsdp2, Fsdp2Model
from moeframe_torch_sharding.laid_out import LaidOutModel
from moeframe_torch_sharding.options import Fsdp2Options
from moeframe_torch_sharding.replicate import ReplicatedModel
from torch import distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from moeframe.hooks import ShardingOffer
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import Meshes, ModelPlan, Sharding, ShardingTraits
from moeframe.testing import sharding_checks as checks
from moeframe.testing.ranks import RankError, RankPool
from moeframe.testing.sharding_bench import Subject
from moeframe.testing.sharding_causes import explain_norm
from moeframe.testing.sharding_dtypes import check_dtypes
from moeframe.testing.sharding_suite import LAYOUTS


@dataclass(frozen=True, kw_only=True)
class FaultOptions:
    """Which fault the strategy has."""

    fault: str = ""


class Faulty(ReplicatedModel):
    """`replicate` with one fault."""

    def __init__(self, fault: str, *args: Any) -> None:
        super().__init__(*args, bucket_bytes=2**20)
        self.fault = fault
        self.kept: dict[str, torch.Tensor] = {}
        self.held = False
        if fault == "grows with micro-batches":
            for name in self.named("expert"):
                self.parameters[name].register_post_accumulate_grad_hook(_double)

    def named(self, kind: str) -> list[str]:
        return [name for name in self.parameters if (self._plan.role(name) == "expert") == (kind == "expert")]

    def scale(self, kind: str, factor: float) -> None:
        for name in self.named(kind):
            gradient = self.parameters[name].grad
            assert gradient is not None
            gradient.mul_(factor)

    def add_up(self, kind: str, axis: str) -> None:
        for name in self.named(kind):
            dist.all_reduce(self.parameters[name].grad, group=self._meshes.group(axis))

    def hold_gradients(self) -> None:
        self.held = True

    def finish_gradients(self) -> None:
        unused = [name for name, parameter in self.parameters.items() if parameter.grad is None]
        sums = {
            "no reduction": (),
            "only within a replica": (("dense", "dp_shard"), ("expert", "edp_shard")),
            "experts reduced like dense parameters": (("dense", "dp"), ("expert", "dp")),
            "reduced twice": (("dense", "dp"), ("dense", "dp"), ("expert", "edp")),
        }
        if self.fault in sums:
            LaidOutModel.finish_gradients(self)
            for kind, axis in sums[self.fault]:
                self.add_up(kind, axis)
            return
        super().finish_gradients()
        size = self._meshes.size
        factors = {
            "mean": {"dense": 1 / size("dp"), "expert": 1 / size("edp")},
            "experts averaged over ep": {"expert": 1 / size("ep")},
            "experts not divided": {"expert": size("ep")},
            "averaged over micro-batches": {"dense": 1 / 3},
        }
        for kind, factor in factors.get(self.fault, {}).items():
            self.scale(kind, factor)
        if self.fault == "sums twice when held" and self.held:
            self.add_up("dense", "dp")
        if self.fault == "unused parameters are skipped":
            for name in unused:
                self.parameters[name].grad = None

    def clip_(self, max_norm: float | None) -> torch.Tensor:
        dense, experts = (
            sum(float(piece.square().sum()) for piece in self._gradient_pieces(expert=expert))
            for expert in (False, True)
        )
        all_experts = torch.tensor(experts, dtype=torch.float64)
        dist.all_reduce(all_experts, group=self._meshes.group("ep"))
        squares = {
            "local norm": dense + experts,
            "dense counted on every rank": dense * self._meshes.size("dp") + float(all_experts),
            "experts counted by holder": dense + float(all_experts) * self._meshes.size("edp"),
            "norm of this stage": dense + float(all_experts),
        }
        if self.fault in squares:
            return torch.tensor(squares[self.fault] ** 0.5, dtype=torch.float64)
        if self.fault == "norm in bfloat16":
            return super().clip_(max_norm).bfloat16()
        norm = super().clip_(None if self.fault == "never clips" else max_norm)
        if self.fault == "experts are not clipped" and max_norm is not None and max_norm < float(norm):
            self.scale("expert", float(norm) / max_norm)
        return norm

    def full_gradients(self) -> dict[str, torch.Tensor]:
        if self.fault == "hands out its own gradients":
            return {name: parameter.grad for name, parameter in self.parameters.items() if parameter.grad is not None}
        return super().full_gradients()

    def optimizer(self, settings: Any) -> Any:
        optimizer = super().optimizer(settings)
        if self.fault == "rate fixed at start":
            optimizer.register_step_pre_hook(lambda *_: optimizer.param_groups[0].update(lr=settings.lr))
        if self.fault == "decays nothing":
            optimizer.param_groups[0]["weight_decay"] = 0.0
        if self.fault == "forward sees old weights":
            self.kept = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
            for unit in self.module.children():
                unit.register_forward_pre_hook(lambda *_: self.swap())
                unit.register_forward_hook(lambda *_: self.swap())
        return optimizer

    def swap(self) -> None:
        for name, parameter in self.parameters.items():
            parameter.data, self.kept[name] = self.kept[name], parameter.data

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.fault == "experts numbered locally":
            return state | {name: self.parameters[name].detach() for name in self.named("expert")}
        if self.fault == "buffers are not saved":
            return {name: value for name, value in state.items() if not name.endswith("bias")}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self.fault == "loads copies only":
            return
        super().load_state_dict(state)
        if self.fault == "experts loaded from the first rank":
            with torch.no_grad():
                for name in self.named("expert"):
                    self.parameters[name].copy_(state[name].full_tensor()[: self.parameters[name].shape[0]])

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        state = super().optimizer_state_dict(optimizer)
        if self.fault == "no state before the first step" and not any(float(held["step"]) for held in state.values()):
            return {}
        if self.fault == "moments are local":
            moments = optimizer.moments()  # type: ignore[attr-defined]
            return {name: dict(moments[name]) for name in state}
        return state

    def load_optimizer_state_dict(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        if self.fault == "moments are not loaded":
            return
        before = {name: held["step"].clone() for name, held in super().optimizer_state_dict(optimizer).items()}
        super().load_optimizer_state_dict(optimizer, state)
        if self.fault == "step count is not loaded":
            fresh = torch.zeros_like(next(iter(before.values())))
            for held in super().optimizer_state_dict(optimizer).values():
                held["step"].copy_(fresh)


def _double(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


class FaultySharding(Sharding):
    def __init__(self, fault: str) -> None:
        self.fault = fault

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> Faulty:
        if self.fault == "weights in bfloat16":
            precision = replace(precision, parameters="bfloat16")
        if self.fault == "sums in bfloat16":
            precision = replace(precision, reduce="bfloat16")
        for unit in plan.units:
            plan.materialize(unit.name, mesh.device)
        if self.fault == "weights in bfloat16":
            model.bfloat16()
        return Faulty(self.fault, model, plan, mesh, precision)


class FaultyFsdp2(Fsdp2):
    def __init__(self, fault: str) -> None:
        super().__init__(Fsdp2Options(reshard_after_forward=True))
        self.fault = fault

    def shard(self, model: nn.Module, plan: ModelPlan, mesh: Meshes, precision: Precision) -> Any:
        if self.fault == "router gathered in bfloat16":
            units = tuple(replace(unit, high_precision=False) for unit in plan.units)
            plan = replace(plan, units=units)
        if self.fault == "ignores the stages":
            plan = replace(plan, roots=("",))
        sharded = super().shard(model, plan, mesh, precision)
        assert isinstance(sharded, Fsdp2Model)
        for module in model.modules():
            if isinstance(module, FSDPModule) and self.fault == "torch divides by the ranks":
                module.set_gradient_divide_factor(float(mesh.size("dp")))
        return sharded


def build(options: FaultOptions) -> Sharding:
    in_fsdp2 = (
        "router gathered in bfloat16",
        "torch divides by the ranks",
        "claims to stay whole",
        "ignores the stages",
    )
    return FaultyFsdp2(options.fault) if options.fault in in_fsdp2 else FaultySharding(options.fault)


def traits(options: FaultOptions, precision: Precision) -> ShardingTraits:
    return ShardingTraits(parameters_stay_whole=True)


OFFER = ShardingOffer(name="faulty", summary="For tests.", build=build, options=FaultOptions, traits=traits)
X = "\N{MULTIPLICATION SIGN}"
TWO = Degrees(world=2, pp=1, dp_replicate=1, ep=1)
TWO_EP = Degrees(world=2, pp=1, dp_replicate=1, ep=2)
FOUR = Degrees(world=4, pp=1, dp_replicate=1, ep=2)
FOUR_EP = Degrees(world=4, pp=1, dp_replicate=1, ep=4)
REPLICAS = Degrees(world=4, pp=1, dp_replicate=2, ep=1)
STAGES = Degrees(world=2, pp=2, dp_replicate=1, ep=1)


def subject(fault: str) -> Subject:
    return Subject(offer=OFFER, options={"fault": fault}, device="cpu")


@pytest.mark.parametrize(
    ("fault", "layout", "message"),
    [
        ("no reduction", TWO, r"dense .*: the sum over this rank only: the rest is not added"),
        ("no reduction", FOUR, r"expert .*: the sum over the ranks of ep only"),
        (
            "only within a replica",
            REPLICAS,
            r"dense .*, .* and \d+ more: the sum over the ranks of dp_shard only",
        ),
        ("mean", TWO, rf"dense .*: {X}0.500 = 1/dp or 1/edp.*: averaged or divided where gradients are sums"),
        ("mean", FOUR, rf"dense .*: {X}0.250 = 1/dp .*; expert .*: {X}0.500 = 1/edp or 1/ep"),
        ("experts averaged over ep", TWO_EP, rf"expert .*: {X}0.500 = 1/dp or 1/ep"),
        ("experts averaged over ep", FOUR_EP, rf"expert .*: {X}0.250 = 1/dp or 1/ep"),
        ("experts not divided", TWO_EP, rf"expert .*: {X}2.000 = dp or ep.*: .* a division is missing"),
        (
            "experts reduced like dense parameters",
            FOUR,
            r"expert .*: no multiple of the right one: it holds other parameters' gradients",
        ),
        ("reduced twice", TWO, rf"dense .*: {X}2.000 = dp or edp"),
        ("averaged over micro-batches", TWO, rf"dense .*: {X}0.333 = 1/micro-batches"),
        (
            "grows with micro-batches",
            TWO_EP,
            r"expert blocks.0.experts.routed.up, .* and 4 more: no multiple of the right one",
        ),
        ("torch divides by the ranks", TWO, rf"dense .*: {X}0.500 = 1/dp"),
    ],
)
def test_gradients_that_are_no_sums_are_found(ranks: RankPool, fault: str, layout: Degrees, message: str) -> None:
    with pytest.raises(RankError, match=f"gradients differ from one process. .*{message}"):
        ranks.run(checks.check_gradients, subject(fault), layout, world_size=layout.world)


@pytest.mark.parametrize(
    ("fault", "layout", "message"),
    [
        ("local norm", TWO_EP, "as if it counted the experts of this ep rank only"),
        ("dense counted on every rank", TWO_EP, "as if it counted dense parameters 2 times = dp"),
        ("experts counted by holder", FOUR, "as if it counted experts 2 times = edp"),
        ("norm of this stage", STAGES, "as if it counted this pipeline stage only"),
        ("norm in bfloat16", TWO, "clip_ returns torch.bfloat16"),
        ("never clips", TWO, "gradients clipped to a quarter of their norm: 17 of 18 differ"),
        ("experts are not clipped", TWO_EP, r"gradients clipped to a quarter.*routed.* \(expert\) off by"),
        ("hands out its own gradients", TWO, "full_gradients returned tensors that clip_ changed later"),
    ],
)
def test_wrong_norms_and_clipping_are_found(ranks: RankPool, fault: str, layout: Degrees, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_norm_and_clipping, subject(fault), layout, world_size=layout.world)


def test_wrong_sums_of_pieces_are_found(ranks: RankPool) -> None:
    ranks.run(checks.check_gradients, subject("sums twice when held"), TWO, world_size=2)
    with pytest.raises(RankError, match=r"runs_phases is stated.*gradients differ .*dense"):
        ranks.run(checks.check_phases, subject("sums twice when held"), TWO, world_size=2)


def test_a_norm_that_no_miscount_explains_says_so() -> None:
    found = explain_norm(3.0, dense=1.0, expert=1.0, own_expert=0.5, stages=0.0, degrees=FOUR)
    assert found == "no simple miscount explains it"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("unused parameters are skipped", r"parameters after step 1: 1 of \d+ differ .*: tail.unused \(dense\)"),
        ("decays nothing", "parameters after step 1"),
        ("rate fixed at start", "parameters after step 2"),
        ("forward sees old weights", "the loss after step 1 .*: the forward does not see the weights"),
    ],
)
def test_wrong_steps_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_steps, subject(fault), TWO, world_size=2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("experts numbered locally", r"state_dict: .*routed.up has shape \(2, 6, 5\), the global one is \(4, 6, 5\)"),
        (
            "buffers are not saved",
            r"state_dict misses \['blocks.0.attend.router.bias', 'blocks.1.attend.router.bias'\]",
        ),
        ("no state before the first step", "optimizer_state_dict misses embedding.weight"),
        ("moments are local", r"optimizer_state_dict, .*routed.up: exp_avg has shape \(2, 6, 5\)"),
    ],
)
def test_state_that_is_not_global_is_found(ranks: RankPool, tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(checks.check_save, subject(fault), TWO_EP, tmp_path, 4, world_size=2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("loads copies only", "parameters after a load"),
        ("experts loaded from the first rank", r"parameters after a load: 6 of \d+ differ .*routed"),
        ("moments are not loaded", "step after a load"),
        ("step count is not loaded", "step after a load"),
    ],
)
def test_state_that_is_not_taken_over_is_found(ranks: RankPool, tmp_path: Path, fault: str, message: str) -> None:
    ranks.run(checks.check_save, subject(""), TWO, tmp_path, 4, world_size=2)
    load = partial(checks.check_load, saved=TWO)
    with pytest.raises(RankError, match=message):
        ranks.run(load, subject(fault), TWO_EP, tmp_path, 4, world_size=2)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("sums in bfloat16", r"the gradient of dense.weight is 25[68].0, the sum is 259.0"),
        ("weights in bfloat16", "the weight of unit 'router' arrived in torch.bfloat16"),
        ("router gathered in bfloat16", "the weight of unit 'router' arrived in torch.bfloat16"),
    ],
)
def test_too_few_bits_are_found(ranks: RankPool, fault: str, message: str) -> None:
    with pytest.raises(RankError, match=message):
        ranks.run(check_dtypes, subject(fault), TWO, "bfloat16", world_size=2)


def test_parameters_that_do_not_stay_whole_are_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"parameters_stay_whole is stated, yet after the forward .* is not whole here"):
        ranks.run(checks.check_whole_parameters, subject("claims to stay whole"), TWO, world_size=2)


def test_stages_that_are_not_laid_out_as_what_is_called_are_found(ranks: RankPool) -> None:
    with pytest.raises(RankError, match=r"got mixed torch.Tensor and DTensor"):
        ranks.run(checks.check_stages, subject("ignores the stages"), TWO, world_size=2)


def test_a_strategy_without_a_fault_passes(ranks: RankPool, tmp_path: Path) -> None:
    for check in (
        checks.check_gradients,
        checks.check_norm_and_clipping,
        checks.check_steps,
        checks.check_units,
        checks.check_stages,
    ):
        ranks.run(check, subject(""), FOUR)
    ranks.run(checks.check_save, subject(""), FOUR, tmp_path, 4)
    ranks.run(partial(checks.check_load, saved=FOUR), subject(""), FOUR, tmp_path, 4)
    ranks.run(check_dtypes, subject(""), FOUR, "bfloat16")
    ranks.run(checks.check_whole_parameters, subject(""), FOUR)


SUITE = """
from moeframe.testing.ranks import RankPool
from moeframe.testing.sharding_suite import LAYOUTS, ShardingConformance
from moeframe_torch_sharding.plugin import moeframe_offer_shardings
import pytest

@pytest.fixture(scope="session")
def ranks():
    with RankPool(1) as pool:
        yield pool

class TestMine(ShardingConformance):
    offer = moeframe_offer_shardings()[0]
    layouts = LAYOUTS[:1]
"""


def test_a_third_party_needs_a_few_lines(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)

    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=15)


def test_every_layout_of_the_kit_is_a_legal_one() -> None:
    for layout in LAYOUTS:
        assert layout.problems(num_experts=2 * layout.ep) == []
