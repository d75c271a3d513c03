"""For those who write rules: compare two releases given as source texts."""

from __future__ import annotations

from moeframe_compat.extract.package import Extraction, read_package
from moeframe_compat.extract.trees import Tree
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.policy.ledger import parse_ledger
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import Report, compare


def snapshot_of(files: str | dict[str, str], label: str = "release", package: str = "pkg") -> Snapshot:
    """A release from the text of its `__init__.py`, or from texts by file name below the package's folder."""
    texts = {"__init__.py": files} if isinstance(files, str) else files
    tree = Tree(label, package, package)
    for name, text in texts.items():
        if name.endswith(".md"):
            tree.documents[name] = text.encode()
        else:
            tree.files[f"{package}/{name}"] = text.encode()
    return read_package(tree, Extraction(package))


def compare_sources(
    before: str | dict[str, str],
    after: str | dict[str, str],
    *,
    off: frozenset[str] = frozenset(),
    ledger: str = "",
    settings: Settings | None = None,
) -> Report:
    """The report on two releases of `pkg`; `off` switches rules off, `ledger` is the text of a changes.toml."""
    changes = parse_ledger(ledger, "changes.toml") if ledger else []
    return compare(
        snapshot_of(before, "old"), snapshot_of(after, "new"), settings or Settings(probe=False), changes, [], off
    )
