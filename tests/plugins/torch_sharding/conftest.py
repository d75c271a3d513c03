"""Which of the many conformance checks run by default."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import pytest

STRIDE: Final = 5
"""One in so many layouts of a check runs by default."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave four of five layouts of each conformance check to the sweep, other ones for each check.

    Every check runs, and every layout runs some check.
    """
    groups: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if "torch_sharding/test_conformance.py" in item.nodeid:
            groups[item.nodeid.partition("[")[0]].append(item)
    for number, group in enumerate(groups.values()):
        for place, item in enumerate(group):
            # the second term moves on, so that a second parameter varies too
            if place % STRIDE != (number % min(STRIDE, len(group)) + place // STRIDE) % STRIDE:
                item.add_marker(pytest.mark.sweep)
