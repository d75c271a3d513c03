"""A key that does not exist is looked for in every section, in files, in overrides and in what is to be explained."""

from __future__ import annotations

import pytest

from moeframe.config.near_keys import did_you_mean, near_keys
from moeframe.config.schema import Recipe
from moeframe.config.typed import dotted_keys

KEYS = tuple(dotted_keys(Recipe))


def test_keys_are_those_of_sections_within_sections_too() -> None:
    assert {"name", "train", "train.steps", "optimizer.lr_schedule.warmup_steps", "model.rope_scaling.factor"} < {*KEYS}
    assert len(KEYS) == len(set(KEYS))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("train.lr", ["optimizer.lr"]),
        ("lr", ["optimizer.lr"]),
        ("train.stpes", ["train.steps"]),
        ("trane", ["train"]),
        ("lr_schedule", ["optimizer.lr_schedule"]),
        ("parallel.nproc_per_node", ["launch.nproc_per_node"]),
        ("train.warmup_step", ["optimizer.lr_schedule.warmup_steps"]),
        ("optimiser.lr", ["optimizer.lr"]),
        ("train.options", ["dispatcher.options", "sharding.options", "schedule.options"]),
        ("zebra", []),
    ],
)
def test_a_key_is_found_when_misspelt_or_in_another_section(key: str, meant: list[str]) -> None:
    assert near_keys(key, KEYS) == meant


def test_several_keys_are_a_choice() -> None:
    assert did_you_mean(["a.x", "b.x"]) == "Did you mean 'a.x' or 'b.x'?"


def test_a_recipe_and_its_overrides_are_told_the_other_section(recipes) -> None:
    lines = recipes.lines("train: {lr: 1e-3}\nep: 2", "parallel.nproc_per_node=3", "lr_schedule.warmup_steps=1")
    assert lines == [
        "r.yaml:2:9: train.lr: unknown key 'lr'. Did you mean 'optimizer.lr'?",
        "r.yaml:3:1: ep: unknown key 'ep'. Did you mean 'parallel.ep'?",
        "lr_schedule.warmup_steps=1: lr_schedule: unknown key 'lr_schedule'. Did you mean 'optimizer.lr_schedule'?",
        "parallel.nproc_per_node=3: parallel.nproc_per_node: unknown key 'nproc_per_node'. "
        "Did you mean 'launch.nproc_per_node'?",
    ]
