"""What a plugin uses of a package: imports, calls, subclasses, hook implementations, strings, recipe keys."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.bodies import call_shape
from moeframe_compat.extract.modules import read_module
from moeframe_compat.extract.names import dotted
from moeframe_compat.index.lookup import Index
from moeframe_compat.model.objects import CallShape

_TEXTS = (".sh", ".yaml", ".yml", ".md", ".toml", ".cfg")
_SKIP = frozenset({".git", ".venv", "venv", "build", "dist", "__pycache__", "node_modules", ".tox", ".nox"})


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the plugin."""

    file: str
    line: int


@dataclass(slots=True)
class Call:
    """A call of something of the package."""

    path: str
    shape: CallShape
    place: Place


@dataclass(slots=True)
class Subclass:
    """A class of the plugin; `bases` are full paths."""

    name: str
    bases: list[str]
    methods: dict[str, tuple[list[str], Place]]
    place: Place


@dataclass(slots=True)
class HookImpl:
    """A function marked as a hook implementation."""

    name: str
    params: list[str]
    place: Place


@dataclass(slots=True)
class Usage:
    """Everything found in a plugin."""

    names: dict[str, list[Place]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    classes: list[Subclass] = field(default_factory=list)
    hooks: list[HookImpl] = field(default_factory=list)
    attributes: dict[str, list[Place]] = field(default_factory=dict)
    strings: dict[str, list[Place]] = field(default_factory=dict)
    projects: dict[str, list[Place]] = field(default_factory=dict)
    keys: dict[str, list[Place]] = field(default_factory=dict)
    words: dict[str, list[Place]] = field(default_factory=dict)
    groups: dict[str, list[Place]] = field(default_factory=dict)
    imported: set[str] = field(default_factory=set)


def read_usage(path: Path, index: Index) -> Usage:
    """Read a plugin: a folder or one file.

    Args:
        path: Where it is.
        index: The release of the package that it runs on, for following its re-exports.

    Raises:
        ExtractionError: There is nothing, or a file cannot be read.
    """
    if not path.exists():
        raise ExtractionError(f"{path.name}: no such file or folder")
    usage = Usage()
    root = path if path.is_dir() else path.parent
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    for file in files:
        inside = file.relative_to(root)
        if any(part in _SKIP for part in inside.parts):
            continue
        shown = _shown(file, inside)
        if file.suffix == ".py":
            _python(usage, file, shown, inside.as_posix(), index)
        elif file.suffix in _TEXTS:
            _text(usage, file, shown)
    return usage


def _shown(file: Path, inside: Path) -> str:
    """Where a file is, seen from the working directory, which annotations and editors go by; else as seen from PATH."""
    try:
        return file.resolve().relative_to(Path.cwd().resolve()).as_posix()
    except ValueError:
        return inside.as_posix()


def _source(file: Path, shown: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ExtractionError(f"{shown}: cannot be read: {e}") from e


def _python(usage: Usage, file: Path, shown: str, inside: str, index: Index) -> None:
    name = inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    module, tree = read_module(name, shown, _source(file, shown), is_package=inside.endswith("__init__.py"))
    imports = dict(module.imports)
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and not n.level:
            imports |= {a.asname or a.name: f"{n.module}.{a.name}" for a in n.names if a.name != "*"}
        elif isinstance(n, ast.Import):
            imports |= {a.asname: a.name for a in n.names if a.asname}
    _Reader(usage, shown, index, imports).visit(tree)


class _Reader(ast.NodeVisitor):
    """Walks one module of the plugin."""

    def __init__(self, usage: Usage, shown: str, index: Index, imports: dict[str, str]) -> None:
        self.usage, self.shown, self.index, self.imports = usage, shown, index, imports
        self.instances: dict[str, str] = {}

    def place(self, node: Any) -> Place:
        return Place(self.shown, node.lineno)

    def full(self, node: ast.AST) -> str:
        """Full path of a name that leads into the package, "" otherwise; the path of its definition where known."""
        name = dotted(node)
        if name is None:
            return ""
        first, _, rest = name.partition(".")
        target = self.imports.get(first) or (first if first == self.index.package.partition(".")[0] else "")
        if not target and first in self.instances:
            target = self.instances[first]
        path = f"{target}.{rest}" if target and rest else target
        return path if path.startswith(self.index.package) else ""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and (node.module or "").startswith(self.index.package):
            for a in node.names:
                self.usage.imported |= {f"{node.module}.{a.name}", node.module or ""}
                self._name(f"{node.module}.{a.name}", node)
                self._name(node.module or "", node)

    def visit_Import(self, node: ast.Import) -> None:
        for a in node.names:
            if a.name.startswith(self.index.package):
                self.usage.imported.add(a.name)
                self._name(a.name, node)

    def _name(self, path: str, node: ast.AST) -> None:
        for p in {path, self._definition(path)}:
            self.usage.names.setdefault(p, []).append(self.place(node))

    def _definition(self, path: str) -> str:
        found = self.index.find(path)
        return found.path if found is not None else path

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self.full(node)
        if path:
            self._name(path, node)
        self.usage.attributes.setdefault(node.attr, []).append(self.place(node))
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call):
            path = self.full(node.value.func)
            for t in node.targets:
                name = dotted(t)
                if path and name and "." not in name:
                    self.instances[name] = self._definition(path)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        path = self.full(node.func)
        if path:
            self.usage.calls.append(Call(self._definition(path), call_shape(node), self.place(node)))
        last = (dotted(node.func) or "").rpartition(".")[2]
        if last in ("HookimplMarker", "HookspecMarker") and node.args and isinstance(node.args[0], ast.Constant):
            self.usage.projects.setdefault(str(node.args[0].value), []).append(self.place(node))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self._definition(p) for b in node.bases if (p := self.full(b))]
        methods = {
            m.name: (
                [a.arg for a in (*m.args.posonlyargs, *m.args.args, *m.args.kwonlyargs)]
                + ([f"**{m.args.kwarg.arg}"] if m.args.kwarg else []),
                self.place(m),
            )
            for m in node.body
            if isinstance(m, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        self.usage.classes.append(Subclass(node.name, bases, methods, self.place(node)))
        for m in node.body:
            for n in ast.walk(m):
                is_super = (
                    isinstance(n, ast.Call)
                    and isinstance(n.func, ast.Attribute)
                    and ast.unparse(n.func.value) == "super()"
                )
                if is_super and bases:
                    assert isinstance(n, ast.Call)
                    assert isinstance(n.func, ast.Attribute)
                    owner = bases[0] if n.func.attr == "__init__" else f"{bases[0]}.{n.func.attr}"
                    self.usage.calls.append(Call(owner, call_shape(n), self.place(n)))
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        marks = [dotted(d.func if isinstance(d, ast.Call) else d) or "" for d in node.decorator_list]
        if any("hookimpl" in m.lower() or m.rpartition(".")[2] in ("impl", "hook_impl") for m in marks):
            params = [a.arg for a in node.args.args if a.arg != "self"]
            named = next(
                (
                    str(k.value.value)
                    for d in node.decorator_list
                    if isinstance(d, ast.Call)
                    for k in d.keywords
                    if k.arg == "specname" and isinstance(k.value, ast.Constant)
                ),
                node.name,
            )
            self.usage.hooks.append(HookImpl(named, params, self.place(node)))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and len(node.value) < 120:
            self.usage.strings.setdefault(node.value, []).append(self.place(node))


def _yaml_keys(source: str) -> dict[str, list[int]]:
    """Keys of all mappings with their lines; of a file that is no YAML, what looks like keys."""
    import yaml

    found: dict[str, list[int]] = {}

    def walk(node: yaml.Node | None) -> None:
        for child in node.value if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else ():
            key, value = child if isinstance(child, tuple) else (None, child)
            if isinstance(key, yaml.ScalarNode):
                found.setdefault(str(key.value).rpartition(".")[2], []).append(key.start_mark.line + 1)
            walk(value)

    try:
        for document in yaml.compose_all(source, Loader=yaml.SafeLoader):
            walk(document)
    except yaml.YAMLError:
        for number, line in enumerate(source.splitlines(), 1):
            key = re.match(r"\s*(?:- )?([A-Za-z_][\w-]*)\s*:", line)
            if key:
                found.setdefault(key[1], []).append(number)
    return found


def _text(usage: Usage, file: Path, shown: str) -> None:
    source = _source(file, shown)
    keys = _yaml_keys(source) if file.suffix in (".yaml", ".yml") else {}
    for name, numbers in keys.items():
        usage.keys.setdefault(name, []).extend(Place(shown, number) for number in numbers)
    for number, line in enumerate(source.splitlines(), 1):
        place = Place(shown, number)
        for word in re.findall(r"--[\w-]+|[A-Za-z_][\w./-]*", line):
            usage.words.setdefault(word.rstrip("."), []).append(place)
    if file.name == "pyproject.toml":
        try:
            groups = tomllib.loads(source).get("project", {}).get("entry-points", {})
        except tomllib.TOMLDecodeError as e:
            raise ExtractionError(f"{shown}: {e}") from e
        for group in groups:
            lines = enumerate(source.splitlines(), 1)
            at = next((i for i, text in lines if group in text and "entry-points" in text), 1)
            usage.groups.setdefault(group, []).append(Place(shown, at))
