from __future__ import annotations

import re
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy
import pytest

from moeframe.errors import UserInputError
from moeframe.hooks import DatasetOffer
from moeframe.protocols.data import Dataset
from moeframe.protocols.precision import Precision

Open: TypeAlias = Callable[..., Dataset]


@pytest.mark.parametrize("name", ["python_sources", "synthetic"])
def test_a_sequence_is_a_pure_function_of_its_index(opened: Open, name: str) -> None:
    first, second = opened(name), opened(name)
    second.sequence(9)
    assert numpy.array_equal(first.sequence(5).tokens, second.sequence(5).tokens)
    assert first.sequence(5).tokens.shape == (17,)


def test_python_sources_are_the_library_of_this_python(opened: Open) -> None:
    dataset = opened("python_sources")
    text = b"".join(dataset.sequence(index).tokens[:-1].astype(numpy.uint8).tobytes() for index in range(2000))
    root = Path(sysconfig.get_path("stdlib"))
    first = min(path.name for path in root.glob("*.py"))
    assert text.startswith((root / first).read_bytes()[:1000])


def test_windows_overlap_by_one_token(opened: Open) -> None:
    dataset = opened("python_sources")
    assert dataset.sequence(3).tokens[-1] == dataset.sequence(4).tokens[0]


def test_validation_files_are_never_trained_on(opened: Open) -> None:
    every = {"validation_every": 2}
    train, held_out = (opened("python_sources", every, split=split) for split in ("train", "validation"))
    one = held_out.sequence(0).tokens[:-1].astype(numpy.uint8).tobytes()
    windows = (train.sequence(i).tokens[:-1].astype(numpy.uint8).tobytes() for i in range(0, train.num_sequences, 97))
    assert one not in windows
    assert train.num_sequences > 1000
    assert held_out.num_sequences > 1000


def test_holding_out_every_file_is_refused(opened: Open) -> None:
    with pytest.raises(UserInputError, match=re.escape("data.options.validation_every is 1")):
        opened("python_sources", {"validation_every": 1})


def test_splits_and_seeds_of_synthetic_tokens_differ(opened: Open) -> None:
    tokens = [
        opened("synthetic", **changes).sequence(0).tokens for changes in ({}, {"split": "validation"}, {"seed": 1})
    ]
    assert not numpy.array_equal(tokens[0], tokens[1])
    assert not numpy.array_equal(tokens[0], tokens[2])
    assert tokens[0].min() >= 0
    assert tokens[0].max() < 256


def test_natural_routing_is_left_to_the_router(opened: Open) -> None:
    assert opened("synthetic").sequence(0).expert_ids is None


def test_balanced_routing_gives_every_expert_the_same_load(opened: Open) -> None:
    ids = opened("synthetic", {"routing": "balanced"}, seq_len=12).sequence(3).expert_ids
    assert ids is not None
    assert numpy.bincount(ids.ravel(), minlength=6).tolist() == [4] * 6
    assert all(len(set(row)) == 2 for row in ids.tolist())


@pytest.mark.parametrize(("hot", "top_k"), [(1, 2), (2, 2), (2, 4)])
def test_skewed_routing_sends_the_share_to_hot_experts(opened: Open, hot: int, top_k: int) -> None:
    options = {"routing": "skewed", "hot_experts": hot, "hot_share": 1.0}
    ids = opened("synthetic", options, top_k=top_k).sequence(0).expert_ids
    assert ids is not None
    loads = numpy.bincount(ids.ravel(), minlength=6)
    assert loads[:hot].tolist() == [16] * hot
    assert loads.sum() == 16 * top_k
    assert all(len(set(row)) == top_k for row in ids.tolist())


@pytest.mark.parametrize(("options", "name"), [({"hot_experts": 3}, "hot_experts"), ({"hot_share": 1.5}, "hot_share")])
def test_impossible_skews_are_refused_with_the_limits(opened: Open, options: dict[str, object], name: str) -> None:
    with pytest.raises(UserInputError, match=rf"data\.options\.{name} is"):
        opened("synthetic", {"routing": "skewed", **options})


@pytest.mark.parametrize(("name", "options", "vocabulary", "forces"), [
    ("python_sources", {}, 256, False),
    ("synthetic", {}, None, False),
    ("synthetic", {"routing": "balanced"}, None, True),
])  # fmt: skip
def test_traits_say_what_core_may_rely_on(
    offers: dict[str, DatasetOffer], name: str, options: dict[str, object], vocabulary: int | None, forces: bool
) -> None:
    offer = offers[name]
    traits = offer.traits(offer.options(**options), Precision.of("float32"))
    assert (traits.vocabulary, traits.forces_routing) == (vocabulary, forces)
