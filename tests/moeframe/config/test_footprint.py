"""What `footprint` says is what the tensors of a job take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import DTensor

from moeframe.config.compose import compose
from moeframe.config.footprint import footprint
from moeframe.config.load import load_recipe
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.train.assemble import assemble
from moeframe.train.trainer import Computed, Trainer

RECIPE = Path(__file__).parents[3] / "recipes" / "deepseek_v3" / "tiny.yaml"
SMALL = (
    "data.name=synthetic",
    "train.steps=1",
    "train.seq_len=16",
    "train.global_batch_size=4",
    "train.micro_batch_size=1",
    "dispatcher.name=alltoall",
    "launch.device=cpu",
)


def _bytes(tensor: torch.Tensor) -> int:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.numel() * local.element_size()


def measured(overrides: tuple[str, ...]) -> Counter[str]:
    """Run one step; return the bytes of parameters and of optimizer state on this rank, experts apart."""
    with assemble(load_recipe(RECIPE, [*SMALL, *overrides])) as job:
        trainer = Trainer(job, progress=False)
        computed = trainer.compute_gradients(0)
        assert isinstance(computed, Computed)
        trainer.apply_gradients(0, computed)
        found: Counter[str] = Counter()
        experts = {id(value) for name, value in job.model.named_parameters() if ".routed." in name}
        for value in job.model.parameters():
            found["parameters: experts" if id(value) in experts else "parameters"] += _bytes(value)
        found["optimizer state"] = sum(
            _bytes(value)
            for state in job.optimizer.state.values()
            for name, value in state.items()
            if name.startswith("exp_avg")
        )
        return found


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, ("parallel.ep=2", "sharding.name=replicate")),
        (2, ("parallel.ep=1", "sharding.name=fsdp2")),
        (4, ("parallel.ep=2", "sharding.name=zero1")),
        (4, ("parallel.ep=2", "sharding.name=fsdp2")),
        (4, ("parallel.ep=2", "sharding.name=hsdp", "parallel.dp_replicate=2")),
        (2, ("parallel.ep=1", "parallel.pp=2", "schedule.name=1f1b", "sharding.name=replicate")),
    ],
)
def test_bytes_are_those_of_the_tensors_of_a_job(ranks, world: int, layout: tuple[str, ...]) -> None:
    overrides = (*layout, f"launch.nproc_per_node={world}")
    composition = compose(load_recipe(RECIPE, [*SMALL, *overrides]), Catalog(build_plugin_manager()))

    for rank, found in enumerate(ranks.run(measured, overrides, world_size=world)):
        said = footprint(composition, composition.degrees.coordinates(rank).pp)
        wanted: Counter[str] = Counter()
        for item in said.state:
            kind = item.name.partition(": ")[0]
            wanted["parameters: experts" if item.name == "parameters: experts" else kind] += item.num_bytes
        for kind, number in found.items():
            # shards of small tensors are padded to equal sizes
            assert wanted[kind] == pytest.approx(number, rel=0.03), kind


def test_a_sharding_that_does_not_say_how_state_lies_is_named(catalog_without_spread) -> None:
    composition = compose(load_recipe(RECIPE, SMALL), catalog_without_spread)

    said = footprint(composition, 0)

    assert said.state == ()
    assert said.unknown == ("sharding 'replicate' does not say how state lies on the ranks",)


@pytest.fixture
def catalog_without_spread(monkeypatch: pytest.MonkeyPatch) -> Catalog:
    catalog = Catalog(build_plugin_manager())
    resolve = catalog.resolve

    def without(kind: str, name: str):
        from dataclasses import replace

        offer = resolve(kind, name)
        return replace(offer, spread=None) if kind == "sharding" else offer

    monkeypatch.setattr(catalog, "resolve", without)
    return catalog
