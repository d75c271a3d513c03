"""The double of the library stands on the path, here and in the ranks, which take the path of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from moeframe.testing.ranks import RankPool

DOUBLES = Path(__file__).parent / "doubles"


@pytest.fixture(scope="module", autouse=True)
def doubles() -> Iterator[None]:
    """Have `deep_ep` be the double."""
    sys.path.insert(0, str(DOUBLES))
    yield
    sys.path.remove(str(DOUBLES))
    for name in [name for name in sys.modules if name.partition(".")[0] == "deep_ep"]:
        del sys.modules[name]


def _remove_folders() -> None:
    from moeframe_deepep import hybrid_wire

    while hybrid_wire._own_folders:
        hybrid_wire._own_folders.pop().cleanup()


@pytest.fixture(scope="module")
def no_folder_stays(ranks: RankPool) -> Iterator[None]:
    """Remove the folders for kernels, which the ranks would leave behind when they are killed."""
    yield
    ranks.run(_remove_folders, world_size=max(1, len(ranks._workers)))
