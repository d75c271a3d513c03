"""Finds the object behind a dotted path, through imports, aliases, lazy exports and inheritance."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass, replace
from typing import Any

from moeframe_compat.index.builtin_types import ancestors
from moeframe_compat.model.objects import Alias, Attribute, Class, Function, Member, Module
from moeframe_compat.model.snapshot import Snapshot

_DEPTH = 24


@dataclass(slots=True, frozen=True)
class Found:
    """An object and where it is defined. `obj` is None for something outside the package (`path` tells what)."""

    path: str
    module: str
    obj: Member | Module | None
    typing_only: bool = False
    branch: str = ""

    @property
    def external(self) -> bool:
        """Is it defined outside the package?"""
        return self.obj is None


class Index:
    """Lookups over one snapshot. Cyclic imports end the search; they never loop."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.modules = snapshot.modules
        self.package = snapshot.package
        self._replaced = {name: (m.path, text) for m in self.modules.values() for name, text in m.replaced.items()}
        tops = {path.partition(".")[0] for path in self.modules}
        self._companions = tops - {self.package.partition(".")[0]}
        self._mro: dict[str, list[Found]] = {}
        self._cache: dict[str, Found | None] = {}
        self._names: dict[tuple[str, str], Found | None] = {}
        self.memo: dict[tuple[str, ...], Any] = {}
        """What other questions about this release gave, by question and subject."""

    def find(self, path: str, depth: int = 0) -> Found | None:
        """The object at a dotted path; None if there is none, or nobody can tell."""
        if depth == 0 and path in self._cache:
            return self._cache[path]
        found = self._find(path, depth)
        if depth == 0:
            self._cache[path] = found
        return found

    def _find(self, path: str, depth: int) -> Found | None:
        if depth > _DEPTH:
            return None
        if not self.inside(path):
            return Found(path, "", None)
        owner, rest = self._module_of(path)
        if owner is None:
            return self._replacement(path, depth)
        found: Found | None = Found(owner.path, owner.path, owner)
        for i, name in enumerate(rest):
            assert found is not None
            found = self.member(found, name, depth + 1)
            if found is None:
                return self._replacement(path, depth)
            if found.external:
                return Found(".".join([found.path, *rest[i + 1 :]]), "", None)
        return found

    def inside(self, path: str) -> bool:
        """Is it a path of the package, or of one that comes with it?"""
        own = path == self.package or path.startswith(f"{self.package}.")
        return own or path.partition(".")[0] in self._companions

    def _replacement(self, path: str, depth: int) -> Found | None:
        """A module put into `sys.modules` under this name."""
        for name, (home, text) in self._replaced.items():
            if path == name or path.startswith(f"{name}."):
                target = self.name(home, text, depth + 1)
                if target is not None and isinstance(target.obj, Module):
                    return self.find(target.path + path[len(name) :], depth + 1)
                return target if path == name else None
        return None

    def replaces(self, path: str) -> bool:
        """Is a module put into `sys.modules` under this name, or under that of a package around it?"""
        return any(path == name or path.startswith(f"{name}.") for name in self._replaced)

    def _module_of(self, path: str) -> tuple[Module | None, list[str]]:
        parts = path.split(".")
        for n in range(len(parts), 0, -1):
            module = self.modules.get(".".join(parts[:n]))
            if module is not None:
                return module, parts[n:]
        return None, []

    def member(self, owner: Found, name: str, depth: int = 0) -> Found | None:
        """A member of a module or class, inherited ones included."""
        if isinstance(owner.obj, Module):
            return self._module_member(owner.obj, name, depth)
        if isinstance(owner.obj, Class):
            for cls in self.mro(owner):
                if isinstance(cls.obj, Class) and name in cls.obj.members:
                    return self._settle(f"{cls.path}.{name}", cls.module, cls.obj.members[name], depth)
        return None

    def _module_member(self, module: Module, name: str, depth: int) -> Found | None:
        made = module.members.get(name)
        if made is not None:
            found = self._settle(f"{module.path}.{name}", module.path, made, depth)
            if found is not None and made.type_checking and name in module.lazy:
                return replace(found, typing_only=False)
            return found
        inner = f"{module.path}.{name}"
        if inner in self.modules:
            return Found(inner, inner, self.modules[inner])
        for alias in module.members.values():
            if isinstance(alias, Alias) and alias.wildcard and depth < _DEPTH:
                found = self._through_star(alias, name, depth)
                if found is not None:
                    return found
        return self._lazy(module, name)

    def _through_star(self, alias: Alias, name: str, depth: int) -> Found | None:
        target = self.find(alias.target, depth + 1)
        if target is None or not isinstance(target.obj, Module):
            return None
        if target.obj.exports is not None:
            return self.find(f"{target.path}.{name}", depth + 1) if name in target.obj.exports else None
        return None if name.startswith("_") else self.find(f"{target.path}.{name}", depth + 1)

    @staticmethod
    def _lazy(module: Module, name: str) -> Found | None:
        if name not in module.lazy:
            return None
        return Found(f"{module.path}.{name}", module.path, Attribute(name, 1))

    def _settle(self, path: str, module: str, made: Member, depth: int) -> Found | None:
        if depth > _DEPTH:
            return None
        if isinstance(made, Alias):
            target = self.find(made.target, depth + 1)
            if target is None:
                return None
            return Found(
                target.path,
                target.module,
                target.obj,
                made.type_checking or target.typing_only,
                made.branch or target.branch,
            )
        if isinstance(made, Attribute) and made.value and not made.instance and _is_name(made.value):
            scope = module if path.count(".") == module.count(".") + 1 else path.rpartition(".")[0]
            target = self.name(scope, made.value, depth + 1) if made.value != made.name else None
            if target is not None and isinstance(target.obj, (Class, Function)):
                return Found(target.path, target.module, target.obj, made.type_checking, made.branch)
        return Found(path, module, made, made.type_checking, made.branch)

    def name(self, scope: str, text: str, depth: int = 0) -> Found | None:
        """What a dotted name means inside a module or class: a member, an import, a builtin, or something outside."""
        if depth:
            return self._name(scope, text, depth)
        if (scope, text) not in self._names:
            self._names[scope, text] = self._name(scope, text, depth)
        return self._names[scope, text]

    def _name(self, scope: str, text: str, depth: int) -> Found | None:  # noqa: PLR0911 - the steps of the search
        first, _, rest = text.partition(".")
        owner, inner = self._module_of(scope)
        while inner:
            holder = self.find(".".join([owner.path, *inner]) if owner else scope, depth + 1)
            if holder is not None and isinstance(holder.obj, Class) and first in holder.obj.members:
                return self.find(f"{holder.path}.{text}", depth + 1)
            inner = inner[:-1]
        if owner is None:
            return None
        found = self._module_member(owner, first, depth)
        if found is None:
            target = owner.imports.get(first)
            if target is not None:
                return self.find(f"{target}.{rest}" if rest else target, depth + 1)
            if any(isinstance(m, Alias) and m.wildcard for m in owner.members.values()) and not _is_builtin(first):
                return None
            return Found(f"builtins.{text}", "", None) if _is_builtin(first) else None
        if not rest:
            return found
        if found.external:
            return Found(f"{found.path}.{rest}", "", None)
        return self.find(f"{found.path}.{rest}", depth + 1)

    def base(self, scope: str, text: str) -> Found | None:
        """What a base class text means; subscripts are dropped, calls are not followed."""
        name = text.split("[", 1)[0].strip()
        found = self.name(scope, name) if _is_name(name) else None
        if found is not None and found.external and found.path.startswith("typing."):
            known = ancestors(found.path)
            return Found(known[0], "", None) if known else found
        return found

    def mro(self, cls: Found) -> list[Found]:
        """A class and all its ancestors, nearest first; outside ones too, as far as the standard library tells."""
        if cls.path in self._mro:
            return self._mro[cls.path]
        self._mro[cls.path] = [cls]  # a class that inherits itself ends here
        out = [cls]
        if isinstance(cls.obj, Class):
            for text in cls.obj.bases:
                found = self.base(cls.path.rpartition(".")[0] or cls.module, text)
                out += self.mro(found) if found is not None else [Found(f"?{text}", "", None)]
        elif cls.external:
            out += [Found(p, "", None) for p in ancestors(cls.path)[1:]]
        seen: dict[str, Found] = {}
        for c in out:
            seen.pop(c.path, None) if c.path in ("typing.Generic", "builtins.object") else None
            seen.setdefault(c.path, c)
        self._mro[cls.path] = list(seen.values())
        return self._mro[cls.path]

    def inherits(self, cls: Found, *paths: str) -> bool:
        """Does the class have one of these (full paths, or last names) among its ancestors?"""
        names = [c.path for c in self.mro(cls)]
        return any(n in paths or n.rsplit(".", 1)[-1].removeprefix("?") in paths for n in names)

    def open_bases(self, cls: Found) -> list[str]:
        """Ancestors about which nothing is known: outside the package and outside the standard library."""
        return [c.path for c in self.mro(cls) if c.external and not ancestors(c.path)]

    def decorator_path(self, scope: str, path: str) -> str:
        """Full path of what a decorator calls."""
        relative = path.removeprefix(f"{scope}.")
        found = self.name(scope, relative) if _is_name(relative) else None
        return found.path if found is not None else path


@functools.cache
def _is_name(text: str) -> bool:
    return all(p.isidentifier() for p in text.split(".")) and text not in ("None", "True", "False")


@functools.cache
def _is_builtin(name: str) -> bool:
    import builtins

    return hasattr(builtins, name)


@functools.cache
def parse(text: str) -> ast.expr | None:
    """An expression's syntax tree, None if the text is no expression."""
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        return None
