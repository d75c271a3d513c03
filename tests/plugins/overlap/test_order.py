from __future__ import annotations

from dataclasses import dataclass

import pytest
from moeframe_overlap.order import backward_alone, forward_alone, paired


@dataclass(frozen=True)
class Node:
    phase: str
    layer: int


MOE, DENSE = ("attend", "dispatch", "experts", "combine"), ("attend", "experts")


def model(*layers: tuple[str, ...]) -> list[Node]:
    inside = [Node(phase, layer) for layer, phases in enumerate(layers) for phase in phases]
    return [Node("embed", -1), *inside, Node("head", -1)]


@pytest.mark.parametrize("nodes", [model(), model(MOE), model(DENSE, MOE, MOE), model(DENSE, DENSE), model(MOE, DENSE)])
def test_every_node_runs_once_each_way_in_an_order_that_its_graph_allows(nodes: list[Node]) -> None:
    turns = [*paired(nodes)]
    assert [place for direction, place in turns if direction == "forward"] == [*range(len(nodes))]
    assert [place for direction, place in turns if direction == "backward"] == [*reversed(range(len(nodes)))]
    assert [*forward_alone(nodes)] == [("forward", place) for place in range(len(nodes))]
    assert [*backward_alone(nodes)] == [("backward", place) for place in reversed(range(len(nodes)))]


def test_two_moe_layers_pass_each_other_as_the_plan_says() -> None:
    nodes = model(MOE)
    words = [f"{nodes[place].phase} {direction}" for direction, place in paired(nodes)]
    assert words == [
        "head backward",
        "embed forward",
        "combine backward",
        "attend forward",
        "experts backward",
        "dispatch forward",
        "dispatch backward",
        "experts forward",
        "combine forward",
        "attend backward",
        "embed backward",
        "head forward",
    ]


def test_a_layer_meets_the_one_at_the_other_end() -> None:
    nodes = model(DENSE, MOE, MOE)
    words = [(direction, nodes[place].layer) for direction, place in paired(nodes) if nodes[place].layer >= 0]
    assert words[:6] == [
        ("backward", 2),
        ("forward", 0),
        ("backward", 2),
        ("backward", 2),
        ("forward", 0),
        ("backward", 2),
    ]
    assert {layer for _, layer in words[6:14]} == {1}
    assert words[-2:] == [("forward", 2), ("backward", 0)]


def test_a_phase_that_no_turn_knows_is_an_error() -> None:
    with pytest.raises(AssertionError, match=r"phases without a turn in a pair: .*route"):
        [*paired(model(("attend", "route")))]
