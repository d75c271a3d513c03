"""torch.compile of the phases that hold parameters, `attend` and `experts`."""

from __future__ import annotations

import torch

from moeframe.model.block import Block

__all__ = ["compile_phases"]


def compile_phases(model: torch.nn.Module) -> None:
    """Compile `attend` and `experts` of every block of a model part, in place; call it before sharding.

    The router stays outside the graph: it counts into plain Python objects. The number of rows that an expert gets
    changes from call to call, so `experts` is compiled for any number of rows, and counts are not handed over on the
    host, where each would be a constant of the graph.
    """
    for block in model.modules():
        if not isinstance(block, Block):
            continue
        if block.attend.router is not None:
            router = block.attend.router
            router.forward = torch.compiler.disable(router.forward)  # type: ignore[method-assign, no-untyped-call]
        block.hands_over_counts = False
        block.attend.compile()
        block.experts.compile(dynamic=True)
