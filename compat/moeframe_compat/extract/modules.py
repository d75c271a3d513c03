"""One source file to one `Module`: griffe reads the signatures, a scan of the statements adds branches and bodies."""

from __future__ import annotations

import ast
import logging
from pathlib import Path
from typing import Any

import griffe

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.bodies import BodyReader, FunctionNode
from moeframe_compat.extract.exports import read_module_tricks
from moeframe_compat.extract.loaded import absolute, read_loads
from moeframe_compat.extract.names import dotted
from moeframe_compat.extract.statements import Scoped, scoped_statements
from moeframe_compat.extract.wrappers import read_wrapper
from moeframe_compat.model.objects import Alias, Attribute, Class, Decorator, Function, Member, Module, Param

logging.getLogger("griffe").addHandler(logging.NullHandler())  # what it cannot read is unknown here, and no finding
_KINDS = {
    griffe.ParameterKind.positional_only: "po",
    griffe.ParameterKind.positional_or_keyword: "pk",
    griffe.ParameterKind.var_positional: "va",
    griffe.ParameterKind.keyword_only: "ko",
    griffe.ParameterKind.var_keyword: "vk",
}


class _Capture(griffe.Extension):
    """Keeps the tree and griffe's objects by the node they were made from."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: ast.Module | None = None
        self.made: dict[int, Any] = {}

    def on_module_node(self, *, node: Any, **_: Any) -> None:
        self.tree = node

    def on_instance(self, *, node: Any, obj: Any, **_: Any) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.made[id(node)] = obj


def read_module(path: str, file: str, source: str, *, is_package: bool) -> tuple[Module, ast.Module]:
    """Read one module.

    Args:
        path: Its dotted path.
        file: Its file, as shown in reports.
        source: Its text.
        is_package: It is an `__init__.py`.

    Returns:
        The module, and its syntax tree (for the surfaces that are read from it).

    Raises:
        ExtractionError: The text is not valid Python.
    """
    capture = _Capture()
    package, _, name = path.rpartition(".")
    filename = Path(*path.split("."), "__init__.py") if is_package else Path(*path.split(".")).with_suffix(".py")
    parent = None
    for part in package.split(".") if package else ():
        outer, parent = parent, griffe.Module(part, filepath=Path("__init__.py"))
        parent.parent = outer
    try:
        griffe.visit(name, filename, source, extensions=griffe.Extensions(capture), parent=parent)
    except SyntaxError as e:
        raise ExtractionError(f"{file}:{e.lineno or 1}: not valid Python: {e.msg}; fix it or exclude the file") from e
    except RecursionError as e:
        raise ExtractionError(f"{file}: nested too deeply to be read; exclude the file") from e
    except ValueError as e:  # source with NUL bytes
        raise ExtractionError(f"{file}: cannot be parsed: {e}") from e
    if capture.tree is None:
        raise ExtractionError(f"{file}: griffe returned no tree")
    module = Module(path, file, is_package=is_package)
    _Scope(module, capture.made).fill(module.members, capture.tree.body)
    read_module_tricks(module, capture.tree)
    read_loads(module, capture.tree)
    return module, capture.tree


class _Scope:
    """Fills members of a module or of one class."""

    def __init__(self, module: Module, made: dict[int, Any]) -> None:
        self.module = module
        self.made = made

    def fill(self, members: dict[str, Member], body: list[ast.stmt], owner: Class | None = None) -> None:
        overloads: dict[str, list[list[Param]]] = {}
        for scoped in scoped_statements(body):
            node = scoped.node
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                self._function(members, scoped, owner, overloads)
            elif isinstance(node, ast.ClassDef):
                add(members, self._class(scoped))
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(members, scoped)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                _assignment(members, scoped, owner)
            elif isinstance(node, ast.Delete):
                for target in node.targets:
                    members.pop(dotted(target) or "", None)
        for name, signatures in overloads.items():
            found = members.get(name)
            if isinstance(found, Function):
                found.overloads = signatures

    def _class(self, scoped: Scoped) -> Class:
        node = scoped.node
        made = self.made[id(node)]
        assert isinstance(node, ast.ClassDef)
        cls = Class(
            node.name,
            node.lineno,
            bases=[str(b) for b in made.bases],
            keywords={k: str(v) for k, v in made.keywords.items()},
            decorators=_decorators(made),
            type_params=[p.name for p in made.type_parameters],
            doc=_doc_head(made),
            branch=scoped.branch,
            type_checking=scoped.type_checking,
        )
        self.fill(cls.members, node.body, cls)
        slots = cls.members.pop("__slots__", None)
        if isinstance(slots, Attribute) and slots.value is not None:
            cls.slots = _slot_names(slots.value)
        return cls

    def _function(
        self, members: dict[str, Member], scoped: Scoped, owner: Class | None, overloads: dict[str, list[list[Param]]]
    ) -> None:
        node = scoped.node
        assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        made = self.made.get(id(node))
        if made is None:
            return
        decorators = _decorators(made) if isinstance(made, griffe.Function) else self._plain_decorators(node)
        names = {d.name for d in decorators}
        accessor = next((d for d in decorators if d.name in ("setter", "deleter") and "." in d.path), None)
        if accessor is not None:
            found = members.get(node.name)
            if isinstance(found, Function):
                found.writable |= accessor.name == "setter"
                found.deletable |= accessor.name == "deleter"
            return
        params = _params(made) if isinstance(made, griffe.Function) else []
        if "overload" in names:
            overloads.setdefault(node.name, []).append(params)
            return
        function = Function(
            node.name,
            node.lineno,
            params,
            returns=str(made.returns if isinstance(made, griffe.Function) else made.annotation)
            if node.returns is not None
            else None,
            decorators=decorators,
            role="property" if _is_property(names) else "function",
            binding=_binding(node, names, owner),
            is_async=isinstance(node, ast.AsyncFunctionDef),
            abstract=bool(names & {"abstractmethod", "abstractproperty"}),
            writable="cached_property" in names,
            doc=_doc_head(made),
            branch=scoped.branch,
            type_checking=scoped.type_checking,
        )
        self._body(function, node, owner)
        add(members, function)

    def _body(self, function: Function, node: FunctionNode, owner: Class | None) -> None:
        bound = owner is not None and function.binding in ("method", "class")
        reader = BodyReader(node, method=bound)
        function.body = reader.body
        function.wraps = read_wrapper(node)
        if owner is None or function.binding != "method":
            return
        again = [n for n in reader.attributes if n in owner.members or node.name != "__init__"]
        owner.changing += [n for n in (*again, *sorted(reader.changing)) if n not in owner.changing]
        for name, (line, text) in reader.attributes.items():
            if name not in owner.members:
                owner.members[name] = Attribute(name, line, text or None, instance=True, setter=node.name)
        owner.named += [name for name in reader.named if name not in owner.named]
        if node.name == "__init__":
            owner.state.update(reader.state)

    @staticmethod
    def _plain_decorators(node: FunctionNode) -> list[Decorator]:
        return [
            Decorator(dotted(d.func if isinstance(d, ast.Call) else d) or "", ast.unparse(d))
            for d in node.decorator_list
        ]

    def _import(self, members: dict[str, Member], scoped: Scoped) -> None:
        node = scoped.node
        for name in node.names:  # type: ignore[attr-defined]
            if isinstance(node, ast.Import):
                bound = name.asname or name.name.partition(".")[0]
                target = name.name if name.asname else bound
            else:
                assert isinstance(node, ast.ImportFrom)
                base = absolute(node, self.module)
                if name.name == "*":
                    members[f"*{base}"] = Alias(f"*{base}", node.lineno, base, wildcard=True, branch=scoped.branch)
                    continue
                bound = name.asname or name.name
                target = f"{base}.{name.name}" if base else name.name
            self.module.imports.setdefault(bound, target)
            alias = Alias(bound, node.lineno, target, name.asname == name.name, branch=scoped.branch)
            alias.type_checking = scoped.type_checking
            add(members, alias)


def add(members: dict[str, Member], new: Member) -> None:
    """Add a definition; a function also defined in another branch keeps the other one as a variant."""
    old = members.pop(new.name, None)
    if old is not None and _is_fallback(old, new):
        old.branch = ""
        members[new.name] = old
        return
    if old is not None and not old.type_checking and new.type_checking:
        members[new.name] = old
        return
    if isinstance(old, Attribute) and isinstance(new, Attribute) and None not in (old.value, new.value):
        new.rebound = old.rebound or (old.value != new.value and not old.branch and not new.branch)
    if isinstance(old, Function) and isinstance(new, Function) and old.branch and new.branch:
        new.variants = [*old.variants, old]
        old.variants = []
    if old is not None and old.branch and new.branch and not new.type_checking:
        new.branch = ""  # defined on both sides, so always there
    elif old is not None and not old.branch and not old.type_checking:
        new.branch = ""
    members[new.name] = new


def _is_fallback(old: Member, new: Member) -> bool:
    """`x = None` where an import of x failed: the import is what x is."""
    return (
        isinstance(new, Attribute)
        and new.value in ("None", "False")
        and "without " in new.branch
        and not isinstance(old, Attribute)
    )


def _assignment(members: dict[str, Member], scoped: Scoped, owner: Class | None) -> None:
    node = scoped.node
    assert isinstance(node, (ast.Assign, ast.AnnAssign))
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    value = ast.unparse(node.value) if node.value is not None else None
    annotation = ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else None
    for target in targets:
        plain = isinstance(target, ast.Name)
        for name in [target] if plain else getattr(target, "elts", []):
            if isinstance(name, ast.Name):
                made = Attribute(name.id, node.lineno, value if plain else None, annotation, branch=scoped.branch)
                made.type_checking = scoped.type_checking
                if owner is None and value is None:
                    made.instance = True  # a bare annotation binds nothing
                add(members, made)


def _params(made: griffe.Function) -> list[Param]:
    return [
        Param(
            p.name.lstrip("*"),
            _kind(p),
            None if p.default is None or p.kind in _VARIADIC else str(p.default),
            None if p.annotation is None else str(p.annotation),
        )
        for p in made.parameters
    ]


def _kind(p: griffe.Parameter) -> str:
    """`__x` was how positional-only was written before Python had a way; methods mangle the name."""
    kind = _KINDS[p.kind or griffe.ParameterKind.positional_or_keyword]
    return "po" if kind == "pk" and p.name.startswith("__") and not p.name.endswith("__") else kind


_VARIADIC = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)


def _decorators(made: Any) -> list[Decorator]:
    return [Decorator(d.callable_path, str(d.value)) for d in made.decorators]


def _is_property(names: set[str]) -> bool:
    return bool(names & {"property", "cached_property", "abstractproperty", "classproperty"})


def _binding(node: FunctionNode, names: set[str], owner: Class | None) -> str:
    if owner is None:
        return "function"
    if "staticmethod" in names:
        return "static"
    if "classmethod" in names or node.name in ("__init_subclass__", "__class_getitem__"):
        return "class"
    return "method"


def _doc_head(made: Any) -> str:
    """The part of a docstring that speaks of deprecation or stability, "" if none."""
    text = made.docstring.value if made.docstring else ""
    low = text.lower()
    return text[:200].strip() if "deprecat" in low or "experimental" in low or "provisional" in low else ""


def _slot_names(text: str) -> list[str]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [value] if isinstance(value, str) else sorted(str(v) for v in value)
