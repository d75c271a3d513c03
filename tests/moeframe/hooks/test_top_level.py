from __future__ import annotations

import sys

import pytest

from moeframe.hooks import top_level_names

SOURCE = """\
import os.path, numpy as np
from .inner import Buffer, Old as New
raise RuntimeError
if os.name == "posix":
    from .more import Extra
else:
    def fallback(): inner_name = 1
try:
    from ._C import Config
except ImportError as error:
    Config = None
VERSION, (MAJOR, _) = "1", (1, 2)
class Handle:
    field = 1
"""


def test_names_that_the_top_level_binds_are_read_and_nothing_runs(site) -> None:
    site.module("heavy.__init__", SOURCE)

    names = top_level_names("heavy")

    assert names is not None
    assert names >= {"os", "np", "Buffer", "New", "Extra", "fallback", "Config", "VERSION", "MAJOR", "Handle"}
    assert not names & {"Old", "field", "inner_name", "numpy"}
    assert "heavy" not in sys.modules


@pytest.mark.parametrize("source", ["from .inner import *\n", "def broken(:\n"])
def test_a_source_that_does_not_tell_gives_none(site, source: str) -> None:
    site.module("heavy.__init__", source)
    assert top_level_names("heavy") is None


def test_a_module_that_is_not_there_gives_none() -> None:
    assert top_level_names("no_such_module") is None
