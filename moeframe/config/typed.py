"""Trees become frozen dataclasses, by the types that their fields declare. Nothing is guessed, nothing is dropped."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from collections.abc import Mapping as AbstractMapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from moeframe.config.near_keys import did_you_mean, near_keys
from moeframe.config.scalars import MISSING_TEXT, describe, is_null, kind_of, read_bool, read_float, read_int, untyped
from moeframe.config.tree import DEFAULT, Leaf, Origin, Tree, join
from moeframe.config.wording import advice, other_reading, shape_of, spoken_type, yaml_reading
from moeframe.errors import Location, Problem

__all__ = ["HOLE", "Reader", "UnknownValueError", "default_tree", "dotted_keys"]

_HINTS: Final[dict[type[Any], dict[str, Any]]] = {}


class UnknownValueError(Exception):
    """A rule touched a value that could not be read; the problem with it is already known."""


class _Hole:
    """Stands in a recipe for a value that could not be read, so that rules on all other values still run."""

    def _touched(self, *_: Any) -> NoReturn:
        raise UnknownValueError

    __getattr__ = __getitem__ = __iter__ = __contains__ = __len__ = __bool__ = __int__ = __float__ = __index__ = (
        _touched
    )
    __str__ = __format__ = __hash__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _touched
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = _touched
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __neg__ = __call__ = __fspath__ = _touched

    def __repr__(self) -> str:
        return "<unreadable>"

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hole:
        return self


HOLE: Final[Any] = _Hole()
"""Every use but `is` and `repr` raises `UnknownValueError`."""


def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the field types of a dataclass."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def dotted_keys(cls: type[Any], path: str = "") -> Iterator[str]:
    """Yield the dotted keys of a dataclass and of the dataclasses in it, sections too."""
    for spec in fields(cls):
        here, hint = join(path, spec.name), hints_of(cls)[spec.name]
        yield here
        for inner in (hint, *get_args(hint)):
            if isinstance(inner, type) and is_dataclass(inner):
                yield from dotted_keys(inner, here)


def default_of(spec: Field[Any]) -> Any:
    """Return a field's default; MISSING when it has none."""
    return spec.default_factory() if spec.default_factory is not MISSING else spec.default


def default_tree(cls: type[Any]) -> dict[str, Tree]:
    """Return the defaults of a dataclass and of the dataclasses in it as a tree; required fields are absent."""
    made: dict[str, Tree] = {}
    for spec in fields(cls):
        hint = hints_of(cls)[spec.name]
        if is_dataclass(hint):
            assert isinstance(hint, type)
            made[spec.name] = default_tree(hint)
        elif (default := default_of(spec)) is not MISSING:
            made[spec.name] = tree_of(default)
    return made


def tree_of(value: Any, origin: Origin = DEFAULT) -> Tree:
    """Return the tree of plain Python values (mappings, sequences, scalars)."""
    if isinstance(value, AbstractMapping):
        return {str(key): tree_of(entry, origin) for key, entry in value.items()}
    if isinstance(value, AbstractSequence) and not isinstance(value, str):
        return [tree_of(entry, origin) for entry in value]
    return Leaf.of(value, origin)


class Reader:
    """Reads trees by type and collects every problem. `origins` gets the origin of each value that was read."""

    def __init__(
        self,
        key_places: AbstractMapping[str, Origin] | None = None,
        top: Location | None = None,
        holes: frozenset[str] = frozenset(),
        spoken: AbstractMapping[str, str] | None = None,
        every_key: Callable[[], AbstractSequence[str]] = tuple,
    ) -> None:
        """Use `key_places` for problems with a key, `top` for what has no place of its own.

        What stands at `holes` is known to be unreadable and its problem reported. `spoken` has words for sections.
        `every_key` returns the dotted keys among which one that is unknown in its section is looked for.
        """
        self.every_key = every_key
        self.spoken = {"": "a recipe", **(spoken or {})}
        self.holes = holes
        self.key_places = key_places or {}
        self.top = top
        self.problems: list[Problem] = []
        self.origins: dict[str, Origin] = {}

    def read(self, hint: Any, tree: Tree, path: str) -> Any:  # noqa: PLR0911  one return for each kind of type
        """Return the value of type `hint` that the tree says, `HOLE` (and a problem) when it says none."""
        origin, arguments = get_origin(hint), get_args(hint)
        if isinstance(tree, Leaf) and tree.text == MISSING_TEXT:
            return self._missing(path, hint, tree)
        if origin in (Union, types.UnionType):
            return self._union(hint, arguments, tree, path)
        if is_dataclass(hint):
            assert isinstance(hint, type)
            return self.read_dataclass(hint, tree, path)
        if origin in (dict, AbstractMapping):
            return self._mapping(arguments[1], tree, path, hint)
        if origin in (list, tuple, AbstractSequence):
            return self._sequence(origin, arguments, tree, path, hint)
        if hint is Any:
            return self._any(tree, path)
        if not isinstance(tree, Leaf):
            return self._wrong(
                path, f"given {shape_of(tree)}; must be {spoken_type(hint)}.", "Write a single value.", tree
            )
        self.origins[path] = tree.origin
        return self._scalar(hint, tree, path)

    def read_dataclass(self, cls: type[Any], tree: Tree, path: str) -> Any:
        """Return an instance of a dataclass with `HOLE` in each field that could not be read."""
        if not isinstance(tree, dict):
            names = [spec.name for spec in fields(cls)]
            rule = f"must be a mapping with the keys {', '.join(names[:4])}{' and more' if len(names) > 4 else ''}"
            if isinstance(tree, Leaf) and is_null(tree):
                fix = "Remove the line to keep the section as it is, or give its keys."
                return self._wrong(path, f"given null over a whole section; {rule}.", fix, tree)
            fix = "Write `key: value`."
            if isinstance(tree, Leaf) and kind_of(tree) == "text" and "name" in names:
                fix = f"Write `{path}: {{name: {tree.text}}}`; on the command line {path}.name={tree.text}."
            return self._wrong(path, f"given {shape_of(tree)}; {rule}.", fix, tree)
        known = {spec.name: spec for spec in fields(cls)}
        required = {name for name, spec in known.items() if default_of(spec) is MISSING}
        missing = [name for name in known if name not in tree]
        explained = {self._unknown(key, known, missing, path) for key in tree if key not in known}
        values: dict[str, Any] = {}
        for name, spec in known.items():
            here = join(path, name)
            hint = hints_of(cls)[name]
            if here in self.holes:
                values[name] = HOLE
            elif name in tree:
                values[name] = self.read(hint, tree[name], here)
            elif name in required:
                values[name] = HOLE if name in explained else self._missing(here, hint)
            else:
                values[name] = default_of(spec)
                self.origins[here] = DEFAULT
        try:
            return cls(**values)
        except UnknownValueError:
            return HOLE  # its own checks touched an unreadable value
        except ValueError as error:
            return self._complain(path, f"{error}".rstrip(".") + ".", "Correct the values.", None)

    def _complain(self, path: str, message: str, fix: str, where: Location | None) -> Any:
        """Add a problem and return `HOLE`."""
        self.problems.append(Problem(path=path, message=message, fix=fix, where=where or self._section_place(path)))
        return HOLE

    def _wrong(self, path: str, message: str, fix: str, tree: Tree) -> Any:
        """Add a problem with the value at `path`."""
        return self._complain(path, message, fix, tree.origin.where if isinstance(tree, Leaf) else None)

    def _section_place(self, path: str) -> Location | None:
        """Return where the key at `path`, or the nearest section above it, stands."""
        while path:
            if path in self.key_places:
                return self.key_places[path].where
            path = path.rpartition(".")[0]
        return self.top

    def _missing(self, path: str, hint: Any, leaf: Leaf | None = None) -> Any:
        """Report a required value that nobody gave."""
        example = f"Give it in the recipe, or on the command line: {path}=VALUE."
        if is_dataclass(hint):
            example = f"Add a section `{path.rpartition('.')[2]}:`."
        if leaf is None:
            return self._complain(path, f"missing; must be {spoken_type(hint)}.", example, None)
        through = f", reached through {leaf.origin.expression}" if leaf.origin.expression is not None else ""
        message = f"missing: the recipe says {MISSING_TEXT} (to be given){through}; must be {spoken_type(hint)}."
        return self._complain(path, message, example, leaf.origin.where)

    def _unknown(self, key: str, known: AbstractMapping[str, Any], missing: list[str], path: str) -> str | None:
        """Report an unknown key; return the missing key that was meant, if any."""
        here = join(path, key)
        section = self.spoken.get(path, path)
        from difflib import get_close_matches

        every_key = self.every_key()
        sure = any(path.rpartition(".")[2] == key for path in every_key)
        near = [] if sure else get_close_matches(key, missing or known, n=1, cutoff=0.75)
        elsewhere = [] if near else near_keys(here, every_key)
        near = near or ([] if elsewhere else get_close_matches(key, known, n=1))
        if "." in key:
            first, rest = key.split(".", 1)
            fix = f"Nest it: `{first}: {{{rest}: ...}}`; dotted keys are for the command line."
        elif near or elsewhere:
            fix = did_you_mean(near or elsewhere)
        else:
            fix = f"Keys of {section}: {', '.join(known)}." if known else f"There is nothing to set in {section}."
        self._complain(here, f"unknown key {key!r}.", fix, None)
        return near[0] if near else None

    def _union(self, hint: Any, options: tuple[Any, ...], tree: Tree, path: str) -> Any:
        """Read the first alternative that fits; null only where null is one of them."""
        nullable = type(None) in options
        others = [option for option in options if option is not type(None)]
        if nullable and isinstance(tree, Leaf):
            if is_null(tree):
                self.origins[path] = tree.origin
                return None
            if tree.text == "None" and not tree.quoted:
                return self._wrong(path, "given 'None', which is text to YAML.", "Write null.", tree)
        if len(others) == 1:
            before = len(self.problems)
            value = self.read(others[0], tree, path)
            if len(self.problems) == before + 1 and isinstance(tree, Leaf) and not is_dataclass(others[0]):
                plain, whole = spoken_type(others[0]), spoken_type(hint)
                last = self.problems[-1]
                message = last.message.replace(f"must be {plain}", f"must be {whole}")
                self.problems[-1] = Problem(path=last.path, message=message, fix=last.fix, where=last.where)
            return value
        for option in others:
            trial = Reader(self.key_places, self.top, self.holes)
            value = trial.read(option, tree, path)
            if not trial.problems:
                self.origins.update(trial.origins)
                return value
        given = describe(tree) if isinstance(tree, Leaf) else shape_of(tree)
        return self._wrong(path, f"given {given}; must be {spoken_type(hint)}.", "Correct the value.", tree)

    def _mapping(self, hint: Any, tree: Tree, path: str, whole: Any) -> Any:
        """Read a mapping with free keys."""
        if not isinstance(tree, dict):
            fix = "Write {key: value}" + (
                ", or {} for an empty one." if isinstance(tree, Leaf) and is_null(tree) else "."
            )
            return self._wrong(path, f"given {shape_of(tree)}; must be {spoken_type(whole)}.", fix, tree)
        for key, value in tree.items():
            if ":" in key and isinstance(value, Leaf) and is_null(value) and value.text == "":
                name, _, given = key.partition(":")
                message, fix = (
                    f"given the key {key!r} without a value.",
                    f"Put a space after the colon: {{{name}: {given}}}.",
                )
                return self._complain(path, message, fix, self._section_place(join(path, key)))
        self.origins[path] = self._container_origin(path)
        return {key: self.read(hint, value, join(path, key)) for key, value in tree.items()}

    def _sequence(self, kind: Any, arguments: tuple[Any, ...], tree: Tree, path: str, whole: Any) -> Any:
        """Read a list; a tuple of fixed length wants exactly that many entries."""
        if not isinstance(tree, list):
            fix = "Write a list: [a, b]."
            if isinstance(tree, Leaf) and tree.text and not is_null(tree):
                fix = f"Put it in brackets: [{tree.text}]."
            return self._wrong(path, f"given {shape_of(tree)}; must be {spoken_type(whole)}.", fix, tree)
        fixed = kind is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis)
        if fixed and len(tree) != len(arguments):
            message = f"given {len(tree)} entries; must be {spoken_type(whole)}."
            return self._complain(path, message, f"Give {len(arguments)} entries.", None)
        hints = arguments if fixed else (arguments[0],) * len(tree)
        first = tree[0] if tree else None
        self.origins[path] = first.origin if isinstance(first, Leaf) else self._container_origin(path)
        values = [
            self.read(hint, value, join(path, index))
            for index, (hint, value) in enumerate(zip(hints, tree, strict=True))
        ]
        return values if kind is list else tuple(values)

    def _container_origin(self, path: str) -> Origin:
        """Return where a list or a mapping was written."""
        return self.key_places.get(path, DEFAULT)

    def _any(self, tree: Tree, path: str) -> Any:
        """Read a value whose type its backend knows, by what YAML says."""
        if isinstance(tree, dict):
            return self._mapping(Any, tree, path, dict[str, Any])
        if isinstance(tree, list):
            return self._sequence(list, (Any,), tree, path, list[Any])
        assert isinstance(tree, Leaf)
        self.origins[path] = tree.origin
        known, value = untyped(tree)
        if known:
            return value
        message = f"given {tree.text} without quotes, which is {yaml_reading(tree)}."
        return self._wrong(
            path, message, f'Quote it ("{tree.text}") if it is text; otherwise {other_reading(tree)}.', tree
        )

    def _scalar(self, hint: Any, leaf: Leaf, path: str) -> Any:  # noqa: PLR0911  one return for each kind of type
        """Read a scalar field."""
        value: Any
        if get_origin(hint) is Literal:
            return self._choice(hint, get_args(hint), leaf, path)
        if hint is str:
            if kind_of(leaf) == "text":
                return leaf.text
            if is_null(leaf):
                return self._wrong(path, f"given {describe(leaf)}; must be text.", "Give a text.", leaf)
            message = f"given {leaf.text} without quotes, which is {yaml_reading(leaf)}; must be text."
            return self._wrong(path, message, f'Quote it: "{leaf.text}".', leaf)
        readers: dict[Any, Any] = {int: read_int, float: read_float, bool: read_bool}
        if hint not in readers:
            message = f"its type {hint} cannot stand in a recipe."
            fix = "Options are made of bool, int, float, str, Literal, lists, tuples, mappings and dataclasses."
            return self._wrong(path, message, fix, leaf)
        value = readers[hint](leaf)
        if value is not None:
            return value
        return self._wrong(path, f"given {describe(leaf)}; must be {spoken_type(hint)}.", advice(hint, leaf), leaf)

    def _choice(self, hint: Any, choices: tuple[Any, ...], leaf: Leaf, path: str) -> Any:
        """Read one of a few values."""
        kind = kind_of(leaf)
        for choice in choices:
            matches = leaf.text == choice if isinstance(choice, str) else leaf.text == str(choice) and not leaf.quoted
            if matches and (kind == "text" or not isinstance(choice, str)):
                return choice
        from difflib import get_close_matches

        near = get_close_matches(leaf.text, [str(choice) for choice in choices], n=1)
        fix = f"Write {choices[0]}." if len(choices) == 1 else "Choose one of them."
        if near:
            fix = f"Did you mean {near[0]}?"
        if leaf.text in choices:
            fix = f'Quote it: "{leaf.text}".'
        return self._wrong(path, f"given {describe(leaf)}; must be {spoken_type(hint)}.", fix, leaf)
