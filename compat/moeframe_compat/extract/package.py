"""A whole release to a snapshot: what each file contributes, put together, and the surfaces beside the modules."""

from __future__ import annotations

import ast
import gc
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatch
from pathlib import Path

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.project import read_project
from moeframe_compat.extract.trees import LEDGER_FILE, Tree
from moeframe_compat.model.objects import Alias, Attribute, Class, Member, Module
from moeframe_compat.model.snapshot import Snapshot, Sources
from moeframe_compat.model.surfaces import Declared, Surfaces


@dataclass(slots=True)
class Extraction:
    """How to read a release: see `read_tree`. Of `companions` only what they offer counts.

    `exclude` holds globs of files to leave out; with `own_settings` the release's own go before them, if it states any.
    """

    package: str
    distribution: str = ""
    root: Path | None = None
    recipes: tuple[str, ...] = ("recipes",)
    exclude: tuple[str, ...] = ()
    companions: tuple[str, ...] = ()
    own_settings: bool = False


@dataclass(slots=True)
class Part:
    """What one file contributes: a module or none, and the surfaces that are read from it."""

    module: Module | None
    surfaces: Surfaces


def read_package(tree: Tree, how: Extraction) -> Snapshot:
    """The snapshot of a tree of files.

    Raises:
        ExtractionError: A file cannot be decoded or parsed.
    """
    return assemble(tree, {file: read_part(file, tree) for file in wanted_files(tree, how)})


def wanted_files(tree: Tree, how: Extraction) -> list[str]:
    """Files of a tree that are read one by one."""
    declared = read_project(tree).declared if how.own_settings else Declared()
    exclude = declared.exclude if declared.stated else how.exclude
    unread = _without_offers(tree)
    return [
        file
        for file in sorted(tree.files)
        if file.endswith((".py", ".yaml", ".yml"))
        and file not in unread
        and not any(fnmatch(file, pattern) for pattern in exclude)
    ]


def _without_offers(tree: Tree) -> set[str]:
    """Files of companions that neither offer anything nor are imported where something is offered."""
    folders = tuple(f"{folder}/" for folder in tree.companions.values())
    files = {f for f in tree.files if folders and f.startswith(folders)}
    offering = {f for f in files if any(word in tree.files[f] for word in _OFFERING)}
    imported = {m.decode() for f in offering for m in _IMPORT.findall(tree.files[f])}
    return {f for f in files - offering if module_name(f, tree) not in imported}


_OFFERING = (b"Offer(", b"Registration(", b"BackendSpec(", b"PluginSpec(")
_IMPORT = re.compile(rb"^ *from +([\w.]+) +import", re.MULTILINE)


def read_part(file: str, tree: Tree) -> Part:
    """What a file of a tree contributes.

    Raises:
        ExtractionError: It cannot be decoded or parsed.
    """
    data = tree.files[file]
    part = Part(None, Surfaces())
    if file.endswith(".py") and (name := module_name(file, tree)):
        from moeframe_compat.extract.modules import read_module  # griffe: not needed when all comes from the cache

        text = _decode(file, data)
        collecting = gc.isenabled()
        gc.disable()  # millions of small objects, none of them garbage
        try:
            part.module, syntax = read_module(name, file, text, is_package=file.endswith("__init__.py"))
            _surfaces(part.surfaces, part.module, syntax, text)
        finally:
            if collecting:
                gc.enable()
    elif file.endswith((".yaml", ".yml")):
        from moeframe_compat.extract.recipes import read_recipe

        recipe = read_recipe(file.removeprefix(f"{tree.prefix}/"), _decode(file, data))
        part.surfaces.recipes += [recipe] if recipe is not None else []
    return part


def assemble(tree: Tree, parts: Mapping[str, Part]) -> Snapshot:
    """The snapshot of a tree from the parts of its files, which become the snapshot's own."""
    snapshot = Snapshot(tree.package, tree.label)
    names = [f.name for f in fields(Surfaces) if f.name != "project"]
    for part in parts.values():
        if part.module is not None:
            own = below(part.module.path, [tree.package])
            made = part.module if own else _data_only(part.module)
            if own or part.surfaces.registrations or any(isinstance(m, Class) for m in made.members.values()):
                snapshot.modules[made.path] = made
        for name in names:
            getattr(snapshot.surfaces, name).extend(getattr(part.surfaces, name))
    for module in snapshot.modules.values():
        if module.exports is not None:
            module.exports = _expanded(snapshot, module, 0)
    snapshot.surfaces.project = read_project(tree)
    snapshot.version = snapshot.surfaces.project.version or _version(snapshot.modules.get(tree.package)) or ""
    sources = {f: tree.files[f] for f in parts if f.endswith(".py") and module_name(f, tree)}
    read = (".py", ".yaml", ".yml")
    snapshot.sources = Sources(
        sources, {f: data for f, data in tree.files.items() if f.endswith(read) and f not in sources}
    )
    snapshot.documents = Sources(tree.documents)
    snapshot.ledger = tree.files.get(f"{tree.prefix}/{LEDGER_FILE}", b"").decode(errors="replace")
    return snapshot


def _data_only(module: Module) -> Module:
    """What the options of an offer may be made of: dataclasses, enums, constants, imports."""
    kept: dict[str, Member] = {}
    for name, m in module.members.items():
        if isinstance(m, Class) and (m.decorated("dataclass") or any("Enum" in base for base in m.bases)):
            kept[name] = replace(m, members={n: x for n, x in m.members.items() if isinstance(x, Attribute)}, state={})
        elif isinstance(m, Attribute) or (isinstance(m, Alias) and not m.type_checking):
            kept[name] = m
    return Module(module.path, module.file, kept, module.imports, is_package=module.is_package)


_INTERESTING = (
    "add_argument(",
    "add_parser(",
    "click",
    "typer",
    ".command(",
    ".group(",
    "register",
    "OmegaConf",
    "entry_points",
    "entrypoints",
    "HookspecMarker",
    "Offer(",
    "Registration(",
    "Spec(",
    "PluginManager",
    "egistry",
    "EGISTRY",
)
_TABLE = re.compile(r"^[A-Za-z_]+ *(:[^=\n]*)?= *\{", re.MULTILINE)


def _surfaces(surfaces: Surfaces, module: Module, syntax: ast.Module, text: str) -> None:
    from moeframe_compat.extract.environment import WORDS, read_variables
    from moeframe_compat.extract.surfaces import read_surfaces

    if any(word in text for word in _INTERESTING) or _TABLE.search(text):
        read_surfaces(surfaces, module, syntax)
    if any(word in text for word in WORDS):
        read_variables(surfaces, module, syntax)


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


def module_name(file: str, tree: Tree) -> str:
    """Dotted name of a source file, "" if it is not importable (a folder or file name that is no identifier)."""
    homes = [(tree.package, tree.prefix), *tree.companions.items()]
    return next((name for package, prefix in homes if (name := _name_below(file, package, prefix))), "")


def below(path: str, packages: Iterable[str]) -> bool:
    """Is a dotted path one of the packages, or inside one?"""
    return any(path == package or path.startswith(f"{package}.") for package in packages)


def _name_below(file: str, package: str, prefix: str) -> str:
    outer = package.count(".") + 1
    base = "/".join(prefix.split("/")[:-outer]) if prefix.endswith(package.replace(".", "/")) else prefix
    relative = file.removeprefix(f"{base}/") if base else file
    if not relative.startswith((f"{package.replace('.', '/')}/", f"{package.replace('.', '/')}.py")):
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
