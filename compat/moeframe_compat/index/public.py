"""Which objects of a release are its API, by which paths, and at which tier."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from moeframe_compat.index.lookup import Found, Index, parse
from moeframe_compat.model.objects import Alias, Attribute, Class, Function, Member, Module
from moeframe_compat.model.surfaces import CLICK

_TESTS = re.compile(r"^(tests?|conftest|test_.+|.+_test)$")
_FURNITURE = ("TypeVar", "ParamSpec", "TypeVarTuple", "getLogger", "get_logger", "NewType")
UNSTABLE = frozenset(
    {
        "experimental",
        "experimental_api",
        "experimental_fn",
        "experimental_cls",
        "experimental_class",
        "provisional",
        "unstable",
        "beta",
        "alpha",
        "preview",
        "internal",
        "internal_api",
        "private",
        "private_api",
        "not_public",
    }
)
"""Last names of decorators that say an object may change; compared whole, never as substrings."""


@dataclass(slots=True)
class Entry:
    """A public object: where it is defined, and all public paths, the main one first."""

    found: Found
    paths: list[str] = field(default_factory=list)
    reexports: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """The path that reports use."""
        return self.paths[0]


def is_private(name: str) -> bool:
    """Does a name say that it is not for others?"""
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def below(path: str, prefixes: Iterable[str]) -> bool:
    """Is a dotted path one of the prefixes, or inside one?"""
    return any(path == prefix or path.startswith(f"{prefix}.") for prefix in prefixes)


def is_test(path: str) -> bool:
    """Is a module one of tests?"""
    return any(_TESTS.match(p) for p in path.split("."))


def module_is_public(path: str) -> bool:
    """Is every part of a module's path public, and none of it tests?"""
    return not any(is_private(p) or _TESTS.match(p) or p == "__main__" for p in path.split("."))


def furniture(index: Index, module: str, made: Member) -> bool:
    """Loggers, type variables, dunders and commands of a module: no API of its own."""
    if made.name.startswith("__") and made.name.endswith("__"):
        return True
    if isinstance(made, Function):
        return is_command(index, module, made)
    if not isinstance(made, Attribute) or not made.value:
        return isinstance(made, Attribute) and made.instance
    head = made.value.split("(", 1)[0]
    return head.rsplit(".", 1)[-1] in _FURNITURE and "(" in made.value


def is_command(index: Index, module: str, made: Function) -> bool:
    """A command of click or typer: the rules of the command line look at it, nobody calls it from Python."""
    decorator = made.decorated("command", "group", "callback")
    if decorator is None:
        return False
    if _libraries(index, module) & {*CLICK, "typer"}:
        return True
    return bool(app_kind(index, index.find(decorator.path.rpartition(".")[0])))


def _libraries(index: Index, module: str) -> set[str]:
    known = index.modules.get(module)
    return {target.partition(".")[0] for target in known.imports.values()} if known else set()


def app_kind(index: Index, app: Found | None) -> str:
    """Is an object a group of click or an app of typer? "" if it is neither."""
    if app is not None and isinstance(app.obj, Function):
        made_group = app.obj.decorated("group", "command") is not None
        return "click" if made_group and _libraries(index, app.module) & CLICK else ""
    call = parse(app.obj.value) if app is not None and isinstance(app.obj, Attribute) and app.obj.value else None
    made = index.name(app.module, ast.unparse(call.func)) if app is not None and isinstance(call, ast.Call) else None
    path = made.path if made is not None else ""
    if path.partition(".")[0] in CLICK:
        return "click"
    return "typer" if path.startswith("typer.") else ""


def public_names(index: Index, module: Module) -> Iterator[tuple[str, Member | None]]:  # noqa: C901 - kinds of names
    """Names a module offers; the member is None for lazy exports and star imports that `__all__` lists."""
    if module.exports is not None:
        for name in module.exports:
            yield name, module.members.get(name)
        return
    for name, made in module.members.items():
        if isinstance(made, Alias):
            inside = made.target == index.package or made.target.startswith(f"{index.package}.")
            if made.wildcard and module.is_package and inside:
                for inner in _star_names(index, made):
                    if inner not in module.members:
                        yield inner, None
            elif made.explicit or (module.is_package and inside and not is_private(name)):
                yield name, made
        elif not is_private(name) and not made.type_checking:
            yield name, made
    for name in module.lazy:
        if name not in module.members and not is_private(name):
            yield name, None


def _star_names(index: Index, alias: Alias) -> Iterator[str]:
    target = index.find(alias.target)
    if target is not None and isinstance(target.obj, Module):
        for name, _ in public_names(index, target.obj):
            yield name


def surface(index: Index) -> dict[str, Entry]:
    """Every public object by the path of its definition."""
    out: dict[str, Entry] = {}
    for path in sorted(index.modules, key=lambda p: (p.count("."), p)):
        module = index.modules[path]
        if not module_is_public(path) or not below(path, [index.package]):
            continue
        for name, made in public_names(index, module):
            if made is not None and furniture(index, path, made):
                continue
            found = index.find(f"{path}.{name}")
            if found is None or found.external or isinstance(found.obj, (Module, Alias)) or found.typing_only:
                continue
            if furniture(index, found.module, found.obj):  # type: ignore[arg-type]
                continue
            entry = out.setdefault(found.path, Entry(found))
            full = f"{path}.{name}"
            entry.paths.append(full)
            if full != found.path:
                entry.reexports.append(full)
    for path, entry in out.items():
        own = path if path in entry.paths else None
        entry.paths.sort(key=lambda p: (p != own, p.count("."), p))
    return out


def unstable(index: Index, found: Found, markers: frozenset[str]) -> str:
    """The marker that makes an object (or the class or module around it) unstable, "" if none does."""
    obj = found.obj
    if isinstance(obj, (Function, Class)):
        for d in obj.decorators:
            if d.name in markers:
                return d.name
    parent = found.path.rpartition(".")[0]
    if parent and parent != index.package and parent not in index.modules:
        outer = index.find(parent)
        if outer is not None and isinstance(outer.obj, Class):
            return unstable(index, outer, markers)
    return ""
