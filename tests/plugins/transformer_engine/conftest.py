"""The double of Transformer Engine stands on the path, here and in the ranks, which take the path of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moeframe_transformer_engine.kernels import BFloat16Kernels, BlockwiseKernels

DOUBLES = Path(__file__).parent / "doubles"


@pytest.fixture(scope="session", autouse=True)
def doubles() -> Iterator[None]:
    sys.path.insert(0, str(DOUBLES))
    yield
    sys.path.remove(str(DOUBLES))


@pytest.fixture
def fake():
    from te_on_cpu import Fake

    return Fake()


@pytest.fixture(params=[BFloat16Kernels, BlockwiseKernels])
def kernels(request, fake):
    return request.param(fake.engine)
