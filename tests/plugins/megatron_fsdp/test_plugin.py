"""What the offer says, and what is refused before a process starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_megatron_fsdp.options import MegatronFsdpOptions
from moeframe_megatron_fsdp.plugin import moeframe_offer_shardings

from moeframe.config.compose import compose
from moeframe.config.load import load_recipe
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.precision import Precision
from moeframe.protocols.sharding import StateSpread

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "megatron_fsdp_2gpu.yaml"
(OFFER,) = moeframe_offer_shardings()


def refusals(*overrides: str, elsewhere: bool = True, device_kind: str | None = None) -> dict[str, str]:
    loaded = load_recipe(RECIPE, overrides)
    host = build_plugin_manager(wanted=loaded.backends, environment={})
    with pytest.raises(RecipeError) as caught:
        compose(loaded, Catalog(host), elsewhere=elsewhere, device_kind=device_kind)
    return {problem.path: f"{problem.message} {problem.fix}" for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("zero", "parameters", "gradients"), [(1, "whole", "whole"), (2, "whole", "replica"), (3, "replica", "replica")]
)
def test_what_lies_where_follows_from_the_stage(zero, parameters, gradients) -> None:
    options = MegatronFsdpOptions(zero=zero)
    assert OFFER.traits(options, Precision.of("bfloat16")).parameters_stay_whole is (parameters == "whole")
    assert OFFER.spread is not None
    assert OFFER.spread(options) == StateSpread(parameters=parameters, gradients=gradients, optimizer="replica")


def test_a_cpu_job_is_refused_with_what_runs_there() -> None:
    found = refusals(elsewhere=False, device_kind="cpu")["sharding.name"]
    assert "cuda" in found
    assert "sharding.name=fsdp2, replicate or zero1" in found


@pytest.mark.parametrize(
    ("overrides", "path", "told"),
    [
        (("launch.device=cpu",), "launch.device", "'megatron_fsdp' runs on cuda only"),
        (("train.precision=float64",), "train.precision", "lays out weights of float32, bfloat16 only"),
        (
            ("parallel.pp=2", "parallel.ep=1", "schedule.name=1f1b", "launch.nproc_per_node=4"),
            "parallel.pp",
            "works without a pipeline only. Use sharding.name=fsdp2",
        ),
        (("parallel.ep=1", "launch.nproc_per_node=1"), "sharding.name", "needs 2 data ranks or more"),
        (("train.compile=true",), "train.compile", "is not known to work on compiled modules"),
        (("sharding.options.zero=0",), "sharding.options.zero", "1"),
        (("sharding.options.bucket_elements=0",), "sharding.options", "a bucket has 1 element or more"),
        (("sharding.options.nccl_ub=true",), "sharding.options.nccl_ub", ""),
    ],
)
def test_what_it_does_not_do_is_refused_before_a_process_starts(overrides, path, told) -> None:
    assert told in refusals(*overrides)[path]
