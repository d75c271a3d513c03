"""The double of the package stands on the path, here and in the ranks, which take the path of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOUBLES = Path(__file__).parent / "doubles"


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Have `megatron_fsdp` be the double."""
    sys.path.insert(0, str(DOUBLES))
    yield
    sys.path.remove(str(DOUBLES))
    for name in [name for name in sys.modules if name.partition(".")[0] == "megatron_fsdp"]:
        del sys.modules[name]
