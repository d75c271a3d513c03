"""YAML text with positions: bytes in, a tree of leaves and every problem of the file out.

A recipe is small. Files, depths and numbers of values beyond any real one are refused before they cost time or memory.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from moeframe.config.interpolation import forbidden_interpolation
from moeframe.config.scalars import kind_of
from moeframe.config.tree import Expression, Leaf, Origin, Tree, join
from moeframe.errors import Location, Problem

__all__ = ["Document", "parse_file", "parse_value"]

_TAG: Final = "tag:yaml.org,2002:"
_PLAIN_TAGS: Final = frozenset(
    f"{_TAG}{name}" for name in ("bool", "float", "int", "map", "merge", "null", "seq", "str", "timestamp", "value")
)
_MOST_BYTES: Final = 2**20
_MOST_VALUES: Final = 20_000
"""Once every alias is written out."""
_DEEPEST: Final = 30
_SHAPE_FIX: Final = "A recipe is a mapping of sections, such as `train: {steps: 200}`."


@dataclass
class Document:
    """One parsed file or override value. `key_places` says where each dotted key stands."""

    tree: Tree
    key_places: dict[str, Origin] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _TooMuchError(Exception):
    """The tree is larger than a recipe may be; the problem is told."""


class _TooDeepError(yaml.MarkedYAMLError):
    """A value lies deeper than a recipe goes."""


class _Loader(yaml.SafeLoader):
    """Remembers the anchor that a node was written under, and goes only so deep."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.anchor_names: dict[int, str] = {}
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if self._depth > _DEEPEST:
            raise _TooDeepError(problem=f"more than {_DEEPEST} levels of nesting", problem_mark=event.start_mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if getattr(event, "anchor", None) is not None:
            self.anchor_names[id(node)] = event.anchor
        return node


def parse_file(path: Path, *, not_meant: Collection[Path] = ()) -> Document:
    """Parse a recipe file; positions carry `path` as it was given.

    The tree of a file that cannot be read is an empty mapping, and the problems say why; they do not propose a file of
    `not_meant`.
    """
    file = str(path)
    try:
        raw = _read_small(path)
    except (OSError, ValueError) as error:
        return Document({}, problems=[_unreadable(path, error, not_meant)])
    if isinstance(raw, Problem):
        return Document({}, problems=[raw])
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - (raw.rfind(b"\n", 0, error.start) + 1) + 1
        where = Location(file=file, line=line, column=column)
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8, and a recipe must be."
        return Document({}, problems=[Problem(path="", message=message, fix="Save the file as UTF-8.", where=where)])
    builder = _Builder(file)
    node = builder.compose(text)
    if builder.document.problems:
        return builder.document
    top = Location(file=file, line=1, column=1)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value == "" and node.style is None):
        builder.complain("", "the file holds no recipe: it is empty.", _SHAPE_FIX, top)
    elif not isinstance(node, yaml.MappingNode):
        shape = "a list" if isinstance(node, yaml.SequenceNode) else f"the text {node.value[:40]!r}"
        builder.complain("", f"the file holds {shape}, not a recipe.", _SHAPE_FIX, builder.place(node))
    else:
        builder.document.tree = builder.whole_tree(node, "")
    return builder.document


def parse_value(text: str, path: str, origin: Origin) -> Document:
    """Parse the value of an override ``path=text`` by the rules of a recipe file; every place is the override."""
    builder = _Builder("", fixed=origin)
    node = builder.compose(text, path)
    if node is not None and not builder.document.problems:
        builder.document.tree = builder.whole_tree(node, path)
    elif node is None:
        builder.document.tree = Leaf("", quoted=False, origin=origin)
    return builder.document


def _read_small(path: Path) -> bytes | Problem:
    """Return the bytes of a regular file, or why it can be no recipe; never waits for a pipe or a device."""
    where = Location(file=str(path))
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError
        if not stat.S_ISREG(found.st_mode):
            kind = "a pipe" if stat.S_ISFIFO(found.st_mode) else "a device"
            message = f"this is {kind}, not a file."
            fix = "Write the recipe to a file: every process of the job reads it."
            return Problem(path="", message=message, fix=fix, where=where)
        raw = file.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        message = f"the file has {found.st_size:,} bytes; a recipe may have {_MOST_BYTES:,}."
        return Problem(path="", message=message, fix="Name a YAML recipe.", where=where)
    return raw


def _unreadable(path: Path, error: OSError | ValueError, not_meant: Collection[Path]) -> Problem:
    """Return why a file cannot be read, with the nearest file that can."""
    where = Location(file=str(path))
    if isinstance(error, ValueError):
        return Problem(path="", message=f"{str(path)!r} is no path: {error}.", fix="Correct it.", where=None)
    if isinstance(error, IsADirectoryError):
        return Problem(path="", message="this is a directory, not a recipe.", fix="Name a YAML file.", where=where)
    if not isinstance(error, FileNotFoundError):
        fix = "Check its permissions." if isinstance(error, PermissionError) else "Name a YAML file."
        return Problem(path="", message=f"cannot be read: {error.strerror}.", fix=fix, where=where)
    message = f"a link to {path.readlink()}, which is not there." if path.is_symlink() else "no such file."
    return Problem(path="", message=message, fix=_other_file(path, not_meant), where=where)


def _other_file(path: Path, not_meant: Collection[Path]) -> str:
    """Return which file may be meant by one that is not there: beside it, or in the folder `recipes`."""
    from difflib import get_close_matches

    if "=" in path.name:
        return "The recipe file stands first, overrides behind it."
    beside = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
    files = sorted(found for found in beside if found != path and found not in not_meant and found.exists())
    near = get_close_matches(path.name, [found.name for found in files], n=1)
    shipped = Path("recipes")
    known = [*shipped.glob("*.y*ml"), *shipped.glob("*/*.y*ml")] if len(path.parts) == 1 else []
    same = sorted(found for found in known if path.name in (found.name, found.stem))
    if near:
        return f"Did you mean {path.parent / near[0]}?"
    if same:
        return f"Did you mean {same[0]}?"
    if not files:
        return f"There is no recipe in {_folder(path.parent)}."
    return f"Recipes in {_folder(path.parent)}: {', '.join(found.name for found in files)}."


def _folder(folder: Path) -> str:
    return "the working directory" if folder == Path() else str(folder)


class _Builder:
    """Turns nodes into trees."""

    def __init__(self, file: str, fixed: Origin | None = None) -> None:
        """Report places in `file`, or `fixed` for everything."""
        self.file = file
        self.fixed = fixed
        self.document = Document({})
        self.anchors: dict[int, str] = {}
        self.open_nodes: list[int] = []
        self.values = 0

    def complain(self, path: str, message: str, fix: str, where: Location | None) -> None:
        """Add a problem."""
        self.document.problems.append(Problem(path=path, message=message, fix=fix, where=where))

    def place(self, node: yaml.Node) -> Location:
        """Return where a node starts."""
        if self.fixed is not None:
            assert self.fixed.where is not None
            return self.fixed.where
        return Location(file=self.file, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def origin(self, node: yaml.Node, anchor: str | None) -> Origin:
        """Return where a value came from."""
        return self.fixed or Origin(kind="file", where=self.place(node), anchor=anchor)

    def compose(self, text: str, path: str = "") -> yaml.Node | None:
        """Return the root node; None for an empty text and for one that is not YAML, which adds a problem."""
        place = self.fixed.where if self.fixed is not None else None
        try:
            loader = _Loader(text)
            node: yaml.Node | None = loader.get_single_node()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            if place is None and mark is not None:
                place = Location(file=self.file, line=mark.line + 1, column=mark.column + 1)
            message, fix = _spoken(error, mark.get_snippet() if mark is not None else None)
            if "<stream end>" in f"{error.problem}" or "end of stream" in f"{error.problem}":
                opened = error.context_mark if self.fixed is None else None
                at = f" on line {opened.line + 1}, column {opened.column + 1}" if opened is not None else ""
                fix = f"Close the bracket, brace or quote that is opened{at}."
            if isinstance(error, _TooDeepError):
                message, fix = f"{error.problem}.", "A recipe has a few levels."
            self.complain(path, message, fix, place)
        except yaml.reader.ReaderError as error:
            if place is None:
                start = text[: error.position]
                column = error.position - (start.rfind("\n") + 1) + 1
                place = Location(file=self.file, line=start.count("\n") + 1, column=column)
            self.complain(
                path, f"the character U+{ord(text[error.position]):04X} may not stand in YAML.", "Delete it.", place
            )
        else:
            self.anchors = loader.anchor_names
            return node
        return None

    def whole_tree(self, node: yaml.Node, path: str) -> Tree:
        """Return the tree of the root; an empty mapping when it is more than a recipe may be."""
        try:
            return self.tree(node, path, None)
        except _TooMuchError:
            return {}

    def tree(self, node: yaml.Node, path: str, anchor: str | None) -> Tree:
        """Return the tree of a node; problems go to the document."""
        anchor = self.anchors.get(id(node), anchor)
        self.values += 1
        if self.values > _MOST_VALUES or path.count(".") > _DEEPEST:
            what = f"{_MOST_VALUES:,} values" if self.values > _MOST_VALUES else f"{_DEEPEST} levels of nesting"
            text = f"more than {what} once every alias is written out."
            self.complain("", text, "A recipe has a few hundred values and a few levels.", self.place(node))
            raise _TooMuchError
        if node.tag not in _PLAIN_TAGS:
            fix = "A recipe is data; write the plain value."
            self.complain(
                path, f"the tag {node.tag.replace(_TAG, '!!')} is not allowed in a recipe.", fix, self.place(node)
            )
            return Leaf("", quoted=False, origin=self.origin(node, anchor))
        if isinstance(node, yaml.ScalarNode):
            return self._leaf(node, path, anchor)
        if id(node) in self.open_nodes:
            self.complain(path, f"the anchor {anchor!r} contains itself.", "Write the value out.", self.place(node))
            return {}
        self.open_nodes.append(id(node))
        made: Tree
        if isinstance(node, yaml.MappingNode):
            made = self._mapping(node, path, anchor)
        else:
            assert isinstance(node, yaml.SequenceNode)
            made = [self.tree(item, join(path, index), anchor) for index, item in enumerate(node.value)]
        self.open_nodes.pop()
        return made

    def _leaf(self, node: yaml.ScalarNode, path: str, anchor: str | None) -> Leaf | Expression:
        """Return a scalar as it was written."""
        leaf = Leaf(node.value, quoted=node.style is not None, origin=self.origin(node, anchor))
        if not leaf.quoted and node.tag == f"{_TAG}str" and kind_of(leaf) in ("null", "bool", "int"):
            leaf.quoted = True  # an explicit !!str is as good as quotes
        if "${" not in leaf.text:
            return leaf
        problem = forbidden_interpolation(leaf, path)
        if problem is None:
            return Expression.of(leaf)
        self.document.problems.append(problem)
        return leaf

    def _mapping(self, node: yaml.MappingNode, path: str, anchor: str | None) -> dict[str, Tree]:
        """Return a mapping; its own keys win over merged ones (``<<``), an earlier merge over a later one."""
        made: dict[str, Tree] = {}
        seen: dict[str, yaml.Node] = {}
        merges: list[tuple[yaml.Node, yaml.Node]] = []
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merges.append((key_node, value_node))
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            here = join(path, key)
            if key in seen:
                first, second = self.place(seen[key]), self.place(key_node)
                self.complain(
                    here,
                    f"the key is given twice, on line {first.line} and on line {second.line}."
                    if self.fixed is None
                    else "the key is given twice.",
                    "Keep one of them.",
                    second,
                )
                continue
            seen[key] = key_node
            self.document.key_places[here] = self.origin(key_node, anchor)
            made[key] = self.tree(value_node, here, anchor)
        for key_node, value_node in merges:
            sources = value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            for source in sources:
                if not isinstance(source, yaml.MappingNode):
                    fix = "Write `<<: *name` with the anchor of a mapping, or a list of such."
                    self.complain(join(path, "<<"), "a merge key takes mappings only.", fix, self.place(key_node))
                    continue
                self._merge(made, source, path, anchor)
        return made

    def _merge(self, made: dict[str, Tree], source: yaml.MappingNode, path: str, anchor: str | None) -> None:
        """Add the keys of a merged mapping that are not there yet."""
        own_places = dict(self.document.key_places)
        merged = self.tree(source, path, anchor)
        assert isinstance(merged, dict)
        for key, value in merged.items():
            made.setdefault(key, value)
        self.document.key_places.update(own_places)

    def _key(self, node: yaml.Node, path: str) -> str | None:
        """Return a key, None (and a problem) for one that is not text."""
        if isinstance(node, yaml.ScalarNode):
            leaf = Leaf(node.value, quoted=node.style is not None, origin=self.origin(node, None))
            kind = kind_of(leaf)
            if kind == "text":
                return leaf.text
            spoken = {"bool": "a boolean", "yes_no": "a boolean", "null": "null"}.get(kind, "a number or a date")
            message = f"the key {leaf.text!r} is {spoken} to YAML 1.1, not text."
            self.complain(join(path, leaf.text), message, f'Quote it ("{leaf.text}") or correct it.', self.place(node))
        else:
            self.complain(path, "a key must be text, not a list or a mapping.", "Write `key: value`.", self.place(node))
        return None


def _spoken(error: yaml.MarkedYAMLError, snippet: str | None) -> tuple[str, str]:
    """Return one line on a syntax error, and what to do."""
    problem = error.problem or error.context or "it cannot be parsed"
    if r"'\t'" in problem:
        return "a tab stands where YAML wants spaces.", "Indent with spaces."
    if "single document" in f"{error.context}":
        return "the file holds more than one YAML document.", "Remove the second `---`."
    if "undefined alias" in problem:
        return f"not valid YAML: {problem}.", "Define the anchor (&name) above its first use, in the same file."
    if "found '?'" in problem and "???" in f"{snippet}":
        return "not valid YAML: ??? cannot stand bare inside {...} or [...].", 'Quote it: "???".'
    if problem == "mapping values are not allowed here":
        return f"not valid YAML: {problem}.", "Look for a second colon in the line, or for wrong indentation."
    context = f" {error.context}," if error.context and error.problem else ""
    line = snippet.strip().splitlines()[0] if snippet else ""
    return f"not valid YAML:{context} {problem}.", f"Look at: {line}" if line else "Correct the syntax."
