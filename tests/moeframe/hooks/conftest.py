"""Installed distributions that exist only in a test."""

from __future__ import annotations

import functools
import importlib
import sys
import textwrap
from collections.abc import Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path

import pytest

from moeframe.hooks import entry_points

RING = """
from moeframe.hooks import DispatcherOffer, hookimpl

@hookimpl
def moeframe_offer_dispatchers():
    return [DispatcherOffer(name="NAME", summary="A dispatcher.", build=print, traits=print)]
"""


class Site:
    """A folder of installed distributions, first on `sys.path` and the only one where entry points are looked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: set[str] = set()

    def module(self, name: str, source: str) -> None:
        """Write a module by its dotted name; its packages are empty unless written too."""
        path = self.folder.joinpath(*name.split("."))
        for parent in list(path.relative_to(self.folder).parents)[:-1]:
            (self.folder / parent).mkdir(parents=True, exist_ok=True)
            (self.folder / parent / "__init__.py").touch()
        path.with_suffix(".py").write_text(textwrap.dedent(source), encoding="utf-8")
        self.modules.add(name.partition(".")[0])
        importlib.invalidate_caches()

    def distribution(
        self, name: str, version: str, entry_points: Mapping[str, str], sources: Mapping[str, str]
    ) -> None:
        """Install a distribution: its entry points of the group, and its modules."""
        self.metadata(name, version, "".join(f"{key} = {value}\n" for key, value in entry_points.items()))
        for module, source in sources.items():
            self.module(module, source)

    def metadata(self, name: str, version: str, entry_point_lines: str) -> None:
        """Write only the metadata of a distribution."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[moeframe]\n{entry_point_lines}")

    def dispatcher(self, offer: str, *, distribution: str | None = None, version: str = "1.0") -> str:
        """Install a distribution that offers one dispatcher; return its module."""
        distribution = distribution or f"moeframe-{offer}"
        module = f"{distribution.replace('-', '_')}_plugin"
        self.distribution(distribution, version, {offer: module}, {module: RING.replace("NAME", offer)})
        return module

    def imported(self) -> set[str]:
        """Return which modules of this site are imported."""
        return {name for name in sys.modules if name.partition(".")[0] in self.modules}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(entry_points, "distributions", functools.partial(distributions, path=[str(folder)]))
    monkeypatch.delenv("MOEFRAME_PLUGINS", raising=False)
    monkeypatch.delenv("MOEFRAME_BLOCKED_PLUGINS", raising=False)
    one = Site(folder)
    yield one
    for name in one.imported():
        del sys.modules[name]
