from __future__ import annotations

import random
from collections.abc import Iterator

import numpy
import pytest
import torch

from moeframe.train.random_state import get_random_state, seed_random_state, set_random_state

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = get_random_state(CPU)
    yield
    set_random_state(before, CPU)


def draw() -> tuple[float, float, float, float]:
    return torch.rand(1).item(), numpy.random.rand(), random.random(), random.gauss()  # noqa: NPY002


def test_a_seed_and_a_rank_decide_what_is_drawn() -> None:
    seed_random_state(3, 0)
    first = draw()
    seed_random_state(3, 0)
    assert draw() == first
    drawn = {first}
    for seed, rank in ((3, 1), (4, 0), (2**63 - 1, 2**20)):
        seed_random_state(seed, rank)
        drawn.add(draw())
    assert len(drawn) == 4


def test_a_state_that_is_restored_draws_on() -> None:
    seed_random_state(0, 0)
    draw()
    state = get_random_state(CPU)
    following = [draw() for _ in range(3)]
    seed_random_state(1, 1)
    set_random_state(state, CPU)
    assert [draw() for _ in range(3)] == following
