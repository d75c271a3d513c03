"""Plans that do not fit their model are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from moeframe_torch_sharding.units import require_plan_fits, unit_modules
from torch import nn

from moeframe.errors import ContractError
from moeframe.protocols.sharding import ModelPlan, Parameter, Unit


def model() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Sequential(nn.Linear(2, 2, bias=False)), nn.Linear(2, 2, bias=False))


def plan(*units: tuple[str, tuple[str, ...]], parameters: tuple[str, ...] = ("0.0.weight", "1.weight")) -> ModelPlan:
    return ModelPlan(
        units=tuple(Unit(name=name, parameters=owned, roles=frozenset({"dense"})) for name, owned in units),
        parameters={name: Parameter(name=name, role="dense", global_shape=(2, 2)) for name in parameters},
        materialize=lambda _unit, _device: None,
    )


def test_a_plan_that_fits_passes() -> None:
    fits = plan(("0.0", ("0.0.weight",)), ("0", ()), ("", ("1.weight",)))
    require_plan_fits(model(), fits)
    whole = model()
    assert unit_modules(whole, fits, fits.units[0]) == [whole[0][0]]
    assert unit_modules(whole, fits, fits.units[2]) == [whole]


def test_the_root_unit_stands_for_every_module_that_a_schedule_calls() -> None:
    whole, fits = model(), plan(("0.0", ("0.0.weight",)), ("", ("1.weight",)))
    assert unit_modules(whole, replace(fits, roots=("0", "1")), fits.units[1]) == [whole[0], whole[1]]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (plan(("", ("1.weight",)), ("0", ("0.0.weight",))), "the root .* last"),
        (plan(("0", ("0.0.weight",)), ("0", ()), ("", ("1.weight",))), "each unit once"),
        (plan(("0", ()), ("0.0", ("0.0.weight",)), ("", ("1.weight",))), "'0.0' lies inside '0' and must come before"),
        (plan(("0", ("0.0.weight",)), ("", ())), "'1.weight': in the model True, in a unit False"),
        (plan(("", ("0.0.weight", "1.weight", "2.weight"))), "'2.weight': in the model False"),
        (plan(("", ("0.0.weight", "1.weight")), parameters=("1.weight",)), "in the plan's parameters False"),
        (plan(("0", ()), ("", ("0.0.weight", "1.weight"))), "listed in unit '', but belongs to '0'"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(broken: ModelPlan, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        require_plan_fits(model(), broken)
