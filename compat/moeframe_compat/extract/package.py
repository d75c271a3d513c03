"""A whole release to a snapshot: every module, and the surfaces beside them."""

from __future__ import annotations

import ast
import gc
import io
import re
import tokenize
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.project import read_project
from moeframe_compat.extract.recipes import read_recipe
from moeframe_compat.extract.trees import Spec, Tree, read_tree
from moeframe_compat.model.objects import Attribute, Module
from moeframe_compat.model.snapshot import Snapshot, Sources, load_snapshot


@dataclass(slots=True)
class Extraction:
    """How to read a release: see `read_tree`; `exclude` holds globs of files to leave out."""

    package: str
    distribution: str = ""
    root: Path | None = None
    recipes: tuple[str, ...] = ("recipes",)
    exclude: tuple[str, ...] = ()
    scripts: dict[str, str] = field(default_factory=dict)


def take_snapshot(spec: Spec, how: Extraction) -> Snapshot:
    """The snapshot of a release.

    Raises:
        ExtractionError: Anything in it cannot be read.
    """
    if spec.kind == "snapshot":
        found = load_snapshot(Path(spec.value), spec.label)
        if found.package != how.package:
            raise ExtractionError(f"snapshot {spec.label}: of package {found.package!r}, not {how.package!r}")
        return found
    tree = read_tree(spec, how.package, distribution=how.distribution, root=how.root, recipes=how.recipes)
    return read_package(tree, how)


def read_package(tree: Tree, how: Extraction) -> Snapshot:
    """The snapshot of a tree of files.

    Raises:
        ExtractionError: A file cannot be decoded or parsed.
    """
    from moeframe_compat.extract.modules import read_module  # griffe: not needed when all comes from the cache

    snapshot = Snapshot(tree.package, tree.label)
    texts: dict[str, str] = {}
    collecting = gc.isenabled()
    gc.disable()  # millions of small objects, none of them garbage
    try:
        for file in sorted(tree.files):
            if any(fnmatch(file, pattern) for pattern in how.exclude):
                continue
            data = tree.files[file]
            if file.endswith(".py") and (name := _module_name(file, tree)):
                texts[file] = _decode(file, data)
                module, syntax = read_module(name, file, texts[file], is_package=file.endswith("__init__.py"))
                snapshot.modules[name] = module
                _surfaces(snapshot, module, syntax, texts[file])
            elif file.endswith((".yaml", ".yml")):
                recipe = read_recipe(_shown(file, tree), _decode(file, data))
                if recipe is not None:
                    snapshot.surfaces.recipes.append(recipe)
    finally:
        if collecting:
            gc.enable()
    for module in snapshot.modules.values():
        if module.exports is not None:
            module.exports = _expanded(snapshot, module, 0)
    snapshot.surfaces.project = read_project(tree)
    snapshot.version = snapshot.surfaces.project.version or _version(snapshot.modules.get(tree.package)) or ""
    snapshot.sources = Sources(texts)
    return snapshot


_INTERESTING = (
    "add_argument(",
    "add_parser(",
    "click",
    "typer",
    "register",
    "OmegaConf",
    "entry_points",
    "entrypoints",
    "HookspecMarker",
    "PluginManager",
    "egistry",
    "EGISTRY",
)
_TABLE = re.compile(r"^[A-Za-z_]+ *(:[^=\n]*)?= *\{", re.MULTILINE)


def _surfaces(snapshot: Snapshot, module: Module, syntax: ast.Module, text: str) -> None:
    from moeframe_compat.extract.surfaces import read_surfaces

    if any(word in text for word in _INTERESTING) or _TABLE.search(text):
        read_surfaces(snapshot.surfaces, module, syntax)


def _expanded(snapshot: Snapshot, module: Module, depth: int) -> list[str]:
    """`__all__` with what it takes over from the `__all__` of other modules (kept as `*name`)."""
    out: list[str] = []
    for name in module.exports or []:
        if not name.startswith("*"):
            out.append(name)
            continue
        path = module.imports.get(name[1:], f"{module.path}.{name[1:]}")
        other = snapshot.modules.get(path) or snapshot.modules.get(f"{module.path}.{name[1:]}")
        if other is None or depth > 8:
            module.dynamic.append("__all__")
        elif other.exports is not None:
            out += _expanded(snapshot, other, depth + 1)
    return list(dict.fromkeys(out))


def _shown(file: str, tree: Tree) -> str:
    return file.removeprefix(f"{tree.prefix}/")


def _module_name(file: str, tree: Tree) -> str:
    """Dotted name of a source file, "" if it is not importable (a folder or file name that is no identifier)."""
    outer = tree.package.count(".") + 1
    base = (
        "/".join(tree.prefix.split("/")[:-outer])
        if tree.prefix.endswith(tree.package.replace(".", "/"))
        else tree.prefix
    )
    relative = file.removeprefix(f"{base}/") if base else file
    if not relative.startswith((f"{tree.package.replace('.', '/')}/", f"{tree.package.replace('.', '/')}.py")):
        return ""
    parts = relative.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if all(p.isidentifier() for p in parts) else ""


def _decode(file: str, data: bytes) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline) if file.endswith(".py") else ("utf-8", None)
        return data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError) as e:
        reason = e.reason if isinstance(e, UnicodeDecodeError) else e
        where = data.count(b"\n", 0, e.start) + 1 if isinstance(e, UnicodeDecodeError) else 1
        raise ExtractionError(
            f"{file}:{where}: not readable as text ({reason}); declare its encoding or exclude the file"
        ) from e


def _version(root: Module | None) -> str | None:
    made = root.members.get("__version__") if root else None
    if isinstance(made, Attribute) and made.value:
        try:
            value = ast.literal_eval(made.value)
        except (ValueError, SyntaxError):
            return None
        return value if isinstance(value, str) else None
    return None
