"""For plugin authors: a pytest fixture that fails when a new release of a package breaks the plugin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from moeframe_compat.consumer.report import check_plugin, render


def fail_if_broken(path: str | Path, *, package: str, old: str, new: str) -> None:
    """Fail the running test with one line per place of a plugin that a new release of a package breaks.

    Args:
        path: The plugin: a folder or one file.
        package: The package it uses.
        old: SPEC of the release it runs on.
        new: SPEC of the release it moves to.
    """
    hits = check_plugin(Path(path), old, new, package)
    if hits.breaking:
        pytest.fail(render(hits, "text"), pytrace=False)


@pytest.fixture(scope="session")
def assert_compatible() -> Callable[..., None]:
    """`assert_compatible("src", package="moeframe", old="pypi:0.1.0", new="pypi:0.2.0")`."""
    return fail_if_broken
