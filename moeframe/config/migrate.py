"""Rewrites the old keys of a recipe file: the text of keys, references and renamed values, and not one byte else.

A place is edited when the ledger alone decides what belongs there. Where it does not (both names are given, a shared
mapping is used elsewhere too, the value has to go to another section), the place is reported and stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from moeframe.config.dump import scalar_text
from moeframe.config.ledger import Change, changes
from moeframe.config.old_keys import reference_to
from moeframe.config.tree import join
from moeframe.config.yaml_source import parse_file
from moeframe.errors import Location, Problem, RecipeError

__all__ = ["Migration", "migrate_file"]

_MERGE: Final = "tag:yaml.org,2002:merge"


@dataclass(frozen=True, kw_only=True)
class _Edit:
    """Characters `start` to `end` of the file become `text`."""

    start: int
    end: int
    text: str


@dataclass(kw_only=True)
class Migration:
    """What becomes of one file. `done` and `undecided` are lines for the user, in the order of the file."""

    path: Path
    old: bytes
    new: bytes
    done: list[str] = field(default_factory=list)
    undecided: list[Problem] = field(default_factory=list)
    bases: tuple[Path, ...] = ()
    """The files that it extends."""


def migrate_file(path: Path) -> Migration:
    """Return a recipe file with new keys; writes nothing.

    Raises:
        RecipeError: the file is missing, not YAML or not a recipe.
    """
    document = parse_file(path)
    if document.problems:
        raise RecipeError(document.problems)
    old = path.read_bytes()
    text = old.decode("utf-8")
    walk = _Walk(path, text)
    for change in changes("config"):
        if change.kind != "default":
            walk.apply(change)
    for edit in sorted(walk.edits.values(), key=lambda edit: -edit.start):
        text = text[: edit.start] + edit.text + text[edit.end :]
    walk.done.sort()
    return Migration(
        path=path,
        old=old,
        new=text.encode("utf-8"),
        done=[line for _, line in walk.done],
        undecided=sorted(walk.undecided, key=lambda problem: (problem.where.line or 0) if problem.where else 0),
        bases=tuple(path.parent / name for name in walk.extends()),
    )


class _Walk:
    """All nodes of a file with the dotted paths by which a recipe reaches them: several, where anchors are shared."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        self.edits: dict[int, _Edit] = {}
        self.done: list[tuple[int, str]] = []
        self.undecided: list[Problem] = []
        self.keys: dict[int, tuple[yaml.ScalarNode, Any, set[str]]] = {}
        self.scalars: dict[int, tuple[yaml.ScalarNode, str]] = {}
        self.given: set[str] = set()
        self._visit(self.root, "", ())

    def _visit(self, node: Any, path: str, above: tuple[int, ...]) -> None:
        """Note a node and all below it."""
        if id(node) in above:
            return
        above = (*above, id(node))
        if isinstance(node, yaml.ScalarNode):
            self.scalars.setdefault(id(node), (node, path))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._visit(item, join(path, index), above)
        elif isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.tag == _MERGE:
                    for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                        self._visit(source, path, above)
                    continue
                if not isinstance(key, yaml.ScalarNode) or "." in key.value:
                    continue  # no key of a recipe
                here = join(path, key.value)
                self.keys.setdefault(id(key), (key, value, set()))[2].add(here)
                self.given.add(here)
                self._visit(value, here, above)

    def extends(self) -> Iterator[str]:
        """Yield the names under `extends`."""
        for node, path in self.scalars.values():
            if path.partition(".")[0] == "extends":
                yield node.value

    def apply(self, change: Change) -> None:
        """Make the edits of one entry, or say why not."""
        for key, value, paths in self.keys.values():
            if change.old in paths:
                self._key(change, key, value, paths)
        if not change.value_map and change.new:
            self._references(change)

    def _key(self, change: Change, key: yaml.ScalarNode, value: Any, paths: set[str]) -> None:
        """Rename one key, and its value where that is called otherwise now."""
        section, _, name = change.new.rpartition(".")
        if not change.new:
            self._leave(change, key, f"{change.reason.rstrip('.')}.", "Remove it by hand.")
        elif change.new in self.given:
            self._leave(change, key, f"{change.new} is given too.", f"Keep {change.new}, and remove this one.")
        elif paths != {change.old}:
            others = ", ".join(sorted(paths - {change.old}))
            self._leave(change, key, f"its mapping is shared with {others} (an anchor).", "Write the mapping out.")
        elif section != change.old.rpartition(".")[0]:
            fix = f"Move it to section {section or 'at the top'}, as {name}."
            self._leave(change, key, f"it belongs to another section since {change.since}.", fix)
        elif change.value_map and not isinstance(value, yaml.ScalarNode):
            self._leave(change, key, f"its values are called otherwise since {change.since}.", f"Write {change.new}.")
        elif not self._replace(key, name):
            self._leave(change, key, "its spelling is unusual.", f"Write {name}.")
        else:
            self._note(key, f"{change.old} -> {change.new}")
            self._rename_value(change, key, value)

    def _rename_value(self, change: Change, key: yaml.ScalarNode, value: Any) -> None:
        """Rename the value of a key where it is called otherwise now."""
        if not isinstance(value, yaml.ScalarNode) or not change.value_map:
            return
        spelling = value.value
        if value.style is None:
            spelling = {"~": "null", "": "null"}.get(spelling, spelling.lower() if spelling.istitle() else spelling)
        if spelling not in change.value_map:
            return
        renamed = scalar_text(change.value_map[spelling])
        if self._replace(value, renamed, quoted=False):
            self._note(key, f"{change.new}: {spelling} -> {renamed}")
        else:
            self._leave(change, key, "the spelling of its value is unusual.", f"Write {renamed}.")

    def _references(self, change: Change) -> None:
        """Rename ``${old.key}``."""
        pattern = reference_to(change.old)
        for node, path in self.scalars.values():
            if not pattern.search(node.value):
                continue
            if self._replace(node, pattern.sub(lambda found: f"${{{change.new}{found[1]}}}", node.value)):
                self._note(node, f"{path}: ${{{change.old}}} -> ${{{change.new}}}")
            else:
                self._leave(change, node, "the spelling of a reference to it is unusual.", f"Write ${{{change.new}}}.")

    def _replace(self, node: yaml.ScalarNode, value: str, *, quoted: bool = True) -> bool:
        """Note that a scalar gets another value, in its own quotes if `quoted`; an anchor or a tag before it stays.

        Returns:
            Whether it can be done: not for a scalar of several lines, or one with escapes.
        """
        quote = node.style or ""
        start, end = node.start_mark.index, node.end_mark.index
        spelled = f"{quote}{node.value}{quote}"
        if quote not in ("", "'", '"') or not self.text[start:end].endswith(spelled):
            return False
        text = f"{quote}{value}{quote}" if quoted else value
        start = end - len(spelled)
        if not spelled:  # nothing stands behind the colon: null
            text = f" {text}"
        self.edits[start] = _Edit(start=start, end=end, text=text)
        return True

    def _note(self, node: yaml.Node, text: str) -> None:
        """Note an edit for the user."""
        self.done.append((node.start_mark.index, f"{self._place(node)}: {text}"))

    def _leave(self, change: Change, node: yaml.Node, why: str, fix: str) -> None:
        """Note a place that stays as it is."""
        self.undecided.append(
            Problem(path=change.old, message=f"left as it is: {why}", fix=fix, where=self._place(node))
        )

    def _place(self, node: yaml.Node) -> Location:
        """Return where a node stands."""
        mark = node.start_mark
        return Location(file=str(self.path), line=mark.line + 1, column=mark.column + 1)
