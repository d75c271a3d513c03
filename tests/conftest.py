"""Fixtures for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeframe.testing.ranks import RankPool

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Return a pool of four warm rank processes (gloo, CPU)."""
    with RankPool(4) as pool:
        yield pool
