"""The tables of the layouts page have every dispatcher and every sharding, with the groups that they work in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from moeframe.hooks.catalog import Catalog
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.offers import DispatcherOffer, ShardingOffer
from moeframe.protocols.precision import Precision

PAGE = (Path(__file__).parents[2] / "docs" / "layouts.md").read_text(encoding="utf-8")


def rows(kind: str) -> dict[str, str]:
    """Return the last column of the table that starts with a kind, by name."""
    (table,) = re.findall(rf"^\| {kind} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    found = {}
    for row in table.splitlines():
        first, *_, last = row.strip("| ").split(" | ")
        found.update(dict.fromkeys(re.findall(r"`(\w+)`", first), last))
    return found


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return Catalog(build_plugin_manager(environment={}))


@pytest.mark.parametrize("kind", ["dispatcher", "sharding"])
def test_every_backend_has_a_row(catalog: Catalog, kind: str) -> None:
    assert sorted(rows(kind)) == sorted(catalog.names(kind))


def test_the_ep_of_a_row_is_what_the_dispatcher_works_with(catalog: Catalog) -> None:
    for name, said in rows("dispatcher").items():
        offer = catalog.resolve("dispatcher", name)
        assert isinstance(offer, DispatcherOffer)
        traits = offer.traits(offer.options(), Precision.of("bfloat16"))
        legal: Callable[[int], bool] = lambda size, t=traits: (  # noqa: E731
            size in t.group_sizes if t.group_sizes else t.min_group <= size <= (t.max_group or size)
        )
        numbers = [int(number) for number in re.findall(r"\d+", said.partition(" (`Buffer`)")[0])]
        assert all(legal(number) for number in numbers), f"{name}: {said}"
        assert (traits.max_group is None) == (not numbers), f"{name}: {said}"
        assert traits.max_group is None or traits.max_group == max(numbers), f"{name}: {said}"


def test_the_replicas_of_a_row_are_what_the_sharding_takes(catalog: Catalog) -> None:
    for name, said in rows("sharding").items():
        offer = catalog.resolve("sharding", name)
        assert isinstance(offer, ShardingOffer)
        traits = offer.traits(offer.options(), Precision.of("bfloat16"))
        wanted = "2 or more" if traits.needs_dp_replicate else "any legal one" if traits.supports_dp_replicate else "1"
        assert said.startswith(wanted), f"{name}: {said}"
