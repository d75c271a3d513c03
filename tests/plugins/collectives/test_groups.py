"""On which group exchanges run, and with what limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from moeframe_collectives import groups
from moeframe_collectives.groups import exchange_group
from moeframe_collectives.options import AllGatherOptions, AllToAllOptions
from moeframe_collectives.plugin import moeframe_check_recipe
from torch import distributed

from moeframe.errors import ContractError
from moeframe.protocols.dispatcher import DispatcherContext

EP: Any = object()
"""Stands for the ep group."""


def context(device: str, ep_size: int = 2, group: Any = EP) -> DispatcherContext:
    return DispatcherContext(
        ep_axis="ep",
        ep_size=ep_size,
        ep_rank=0,
        ep_group=group,
        num_experts=4,
        hidden_size=8,
        top_k=2,
        max_tokens=8,
        dtype=torch.float32,
        device=torch.device(device),
    )


def test_without_a_limit_exchanges_run_on_the_ep_group_itself() -> None:
    assert exchange_group(context("cpu"), None) is EP
    assert exchange_group(context("cuda"), None) is EP


def test_one_rank_exchanges_nothing_so_it_needs_no_group() -> None:
    assert exchange_group(context("cuda", ep_size=1), 8) is None
    assert exchange_group(context("cuda", ep_size=1, group=None), None) is None


def test_a_limit_makes_a_group_of_the_same_ranks_that_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}

    class Options:
        def __init__(self) -> None:
            self.config = SimpleNamespace(max_ctas=None)

    def new_group(ranks: list[int], **given: Any) -> str:
        made.update(given, ranks=ranks)
        return "limited"

    nccl = SimpleNamespace(Options=Options)
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", nccl, raising=False)
    monkeypatch.setattr(distributed, "get_process_group_ranks", lambda group: {EP: [2, 3]}[group])
    monkeypatch.setattr(distributed, "new_group", new_group)

    assert exchange_group(context("cuda"), 8) == "limited"
    assert made.pop("pg_options").config.max_ctas == 8
    # Other ep groups have no part in it, and the ledger shows the name.
    assert made == {"ranks": [2, 3], "group_desc": "ep", "use_local_synchronization": True}


def test_a_limit_of_nccl_is_refused_on_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups.distributed, "get_backend", lambda group: "gloo")
    with pytest.raises(ContractError, match=r"max_ctas = 8 limits .* run on gloo .* Set max_ctas to null"):
        exchange_group(context("cpu"), 8)


def recipe(name: str, device: str, **options: Any) -> Any:
    """What the rule reads of a recipe."""
    dispatcher = SimpleNamespace(name=name, options=options)
    return SimpleNamespace(dispatcher=dispatcher, launch=SimpleNamespace(device=device))


def test_it_is_refused_before_a_job_starts_where_that_is_known() -> None:
    (problem,) = moeframe_check_recipe(recipe("alltoall", "cpu", max_ctas=8))
    assert (problem.path, problem.fix) == (
        "dispatcher.options.max_ctas",
        "Set it to null, or launch.device to cuda.",
    )
    assert "given 8" in problem.message
    assert not moeframe_check_recipe(recipe("alltoall", "cuda", max_ctas=8))
    assert not moeframe_check_recipe(recipe("alltoall", "cpu", max_ctas=None))
    assert not moeframe_check_recipe(recipe("other", "cpu", max_ctas=8))


@pytest.mark.parametrize("options", [AllGatherOptions, AllToAllOptions])
def test_a_limit_is_a_positive_number(options: Any) -> None:
    assert options(max_ctas=1).max_ctas == 1
    with pytest.raises(ValueError, match=r"max_ctas = 0 must be 1 or more"):
        options(max_ctas=0)
