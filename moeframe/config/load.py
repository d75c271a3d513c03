"""From a YAML file to a typed recipe: read, merge, resolve, type. Every problem at once."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final

from moeframe.config.dump import dump_recipe, recipe_hash
from moeframe.config.merge import Merger
from moeframe.config.moot import reset_moot_keys
from moeframe.config.old_keys import OldKeys
from moeframe.config.paths import real_path, with_absolute_paths
from moeframe.config.problems import in_order
from moeframe.config.provenance import Provenance
from moeframe.config.scalars import kind_of
from moeframe.config.schema import BACKEND_SECTIONS, Recipe
from moeframe.config.tree import Expression, Leaf, Origin, Tree, join
from moeframe.config.typed import (
    HOLE,
    Reader,
    UnknownValueError,
    default_of,
    default_tree,
    dotted_keys,
    hints_of,
    tree_of,
)
from moeframe.config.wording import shape_of
from moeframe.config.yaml_source import Document, parse_file, parse_value
from moeframe.errors import Location, Problem, RecipeError

__all__ = ["LoadedRecipe", "dump_recipe", "load_recipe", "read_recipe", "recipe_hash", "with_overrides"]

logger = logging.getLogger(__name__)

_EXTENDS: Final = "extends"
_MOST_FILES: Final = 100


@dataclass(frozen=True, kw_only=True)
class LoadedRecipe:
    """A typed recipe with the story of its values.

    `problems` is empty for what `load_recipe` returns. Otherwise the values that could not be read are `HOLE`, which
    only `compose` may touch.
    """

    recipe: Recipe
    provenance: Provenance
    path: Path | None = None
    overrides: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, recipe: Recipe) -> LoadedRecipe:
        """Return a recipe that was made in Python; its values have no places."""
        return cls(recipe=recipe, provenance=Provenance())

    @property
    def backends(self) -> dict[str, str]:
        """The backend that each section names, where the recipe says it readably."""
        found = {}
        for kind in BACKEND_SECTIONS:
            with suppress(UnknownValueError):
                found[kind] = str(getattr(self.recipe, kind).name)
        return found


def load_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load a recipe.

    Args:
        path: a YAML file. Base recipes under `extends` are relative to the file that names them.
        overrides: ``key=value`` each, typed as if written in the file.

    Raises:
        RecipeError: with every problem of the files, the overrides and the types. What only a composition can tell
            (mesh, batch, backends) is left to `compose`.
    """
    loaded = read_recipe(path, overrides)
    if loaded.problems:
        raise RecipeError(loaded.problems)
    return loaded


def read_recipe(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load a recipe as far as it goes: as `load_recipe`, but a wrong value becomes a `HOLE` and a problem.

    Raises:
        RecipeError: a file is missing or is not YAML, so that there is nothing to type.
    """
    layers = _Layers()
    layers.collect(Path(path), ())
    settings = [_parse_override(text) for text in overrides]
    syntax = [*layers.problems, *(problem for _, document in settings for problem in document.problems)]
    if layers.unreadable:
        raise RecipeError(in_order(syntax))
    old_keys = OldKeys()
    for document in layers.documents:
        old_keys.translate_file(document)
    settings = old_keys.translate_overrides(settings)
    old_keys.tell(layers.files)
    for earlier, later in _overruled(settings):
        logger.warning("the override %s has no effect: %s comes later", earlier, later)
    syntax += old_keys.problems
    merger = Merger(default_tree(Recipe))
    for document in layers.documents:
        assert isinstance(document.tree, dict)
        merger.add(document.tree)
    merger.override((key, document.tree) for key, document in settings if not document.problems)
    tree = merger.resolved()
    key_places = _key_places([*layers.documents, *(document for _, document in settings)])
    _drop_untouched_sections(tree, key_places)
    known = frozenset(problem.path for problem in [*syntax, *merger.problems])
    top = Location(file=str(path), line=1, column=1)
    reader = Reader(key_places, top=top, holes=known, every_key=lambda: tuple(dotted_keys(Recipe)))
    recipe: Recipe = reader.read_dataclass(Recipe, tree, "")
    provenance = Provenance(reader.origins, key_places, tuple(layers.files), tree)
    if recipe.model is not HOLE:
        recipe = replace(recipe, model=with_absolute_paths(recipe.model, "model", provenance))
    recipe, provenance = reset_moot_keys(recipe, provenance)
    return LoadedRecipe(
        recipe=recipe,
        provenance=provenance,
        path=Path(path),
        overrides=tuple(overrides),
        problems=in_order([*syntax, *merger.problems, *reader.problems]),
    )


def with_overrides(loaded: LoadedRecipe, values: Mapping[str, Any], *, origin: str) -> LoadedRecipe:
    """Return a copy in which code set some values.

    Args:
        loaded: stays as it is.
        values: Python values by dotted key; no key inside `options`.
        origin: what `explain` and problems say of them, such as ``assemble(use_flex_dispatcher=True)``.

    Raises:
        RecipeError: a key does not exist, or a value has the wrong type.
    """
    source = Origin(kind="override", where=Location(file=origin))
    recipe, provenance, reader = loaded.recipe, loaded.provenance, Reader(top=source.where)
    for path, value in values.items():
        tree = tree_of(value, source)
        for key in reversed(path.split(".")):
            tree = {key: tree}
        recipe = _replaced(recipe, tree, "", reader)
        provenance = provenance.with_origin(path, source)
    if reader.problems:
        raise RecipeError(reader.problems)
    return replace(loaded, recipe=recipe, provenance=provenance)


def _replaced(owner: Any, tree: Tree, path: str, reader: Reader) -> Any:
    """Return a copy of nested dataclasses with the values that a tree gives."""
    if not is_dataclass(owner) or isinstance(owner, type) or not isinstance(tree, dict):
        return reader.read(type(owner), tree, path)
    changed = {}
    for name, value in tree.items():
        here, hint = join(path, name), hints_of(type(owner)).get(name)
        if hint is None:
            reader.read_dataclass(type(owner), {**default_tree(type(owner)), name: value}, path)
        elif isinstance(value, dict) and is_dataclass(hint):
            changed[name] = _replaced(getattr(owner, name), value, here, reader)
        else:
            changed[name] = reader.read(hint, value, here)
    return replace(owner, **changed)


class _Layers:
    """The files of a recipe, bases first."""

    def __init__(self) -> None:
        """Start with none."""
        self.documents: list[Document] = []
        self.files: list[str] = []
        self.problems: list[Problem] = []
        self.unreadable = False
        self._too_many = False

    def collect(self, path: Path, chain: tuple[Path, ...], named_at: Location | None = None) -> None:
        """Add a file after everything it extends. `chain` holds the files that led here, from the first to the last."""
        if real_path(path) in map(real_path, chain):
            circle = " -> ".join(str(file) for file in (*chain, path))
            message = f"the recipe extends itself: {circle}."
            self._complain(message, "Remove one of the lines.", named_at)
            return
        if len(self.files) + len(chain) >= _MOST_FILES:
            if not self._too_many:
                message = f"more than {_MOST_FILES} files extend one another; a file counts each time it is named."
                self._complain(message, "Name each base once.", named_at)
            self._too_many = True
            return
        document = parse_file(path, not_meant=chain)
        if document.tree == {} and document.problems:
            self.unreadable = True
            problem = document.problems[0]
            if named_at is not None and (problem.where is None or problem.where.line is None):  # it cannot be read
                self._complain(
                    f"{path}: {problem.message}", f"{problem.fix} Paths are relative to this file.", named_at
                )
                return
        self.problems += document.problems
        assert isinstance(document.tree, dict)
        extends = document.tree.pop(_EXTENDS, None)
        for base in self._bases(extends, document.key_places.get(_EXTENDS)):
            target = Path(os.path.normpath(path.parent / base.text))
            self.collect(target, (*chain, path), base.origin.where)
        self.documents.append(document)
        self.files.append(str(path))

    def _bases(self, extends: Tree | None, key_place: Origin | None) -> Iterable[Leaf]:
        """Return the entries of `extends`."""
        if extends is None:
            return
        entries = extends if isinstance(extends, list) else [extends]
        for entry in entries:
            if isinstance(entry, Leaf) and entry.text and kind_of(entry) == "text":
                yield entry
            else:
                where = entry.origin.where if isinstance(entry, Leaf | Expression) else None
                where = where or (key_place.where if key_place is not None else None)
                given = repr(str(entry)) if isinstance(entry, Expression) else shape_of(entry)
                message = f"given {given}; must be a list of recipe files."
                self._complain(message, "Write `extends: [base.yaml]`.", where)

    def _complain(self, message: str, fix: str, where: Location | None) -> None:
        """Add a problem with `extends`, without which there is nothing to type."""
        self.problems.append(Problem(path=_EXTENDS, message=message, fix=fix, where=where))
        self.unreadable = True


def _parse_override(text: str) -> tuple[str, Document]:
    """Return the key and the value of ``key=value``."""
    key, equals, value = text.partition("=")
    key = key.strip()
    origin = Origin(kind="override", where=Location(file=text))
    if not equals:
        message, fix = f"the argument {text!r} has no '='.", "An override is key=value, such as train.steps=50."
        if text.endswith((".yaml", ".yml")):
            fix = (
                f"One recipe at a time, and before its overrides. {fix} Base recipes stand under `extends` in the file."
            )
    elif not key or not all(part.strip() == part and part for part in key.split(".")):
        message, fix = f"{key!r} is not a dotted key.", "An override is key=value, such as train.steps=50."
    elif key == _EXTENDS:
        message, fix = "cannot be overridden.", "Name the base recipes in the file."
    else:
        document = parse_value(value, key, origin)
        while key:
            document.key_places.setdefault(key, origin)
            key = key.rpartition(".")[0]
        return text.partition("=")[0].strip(), document
    key = key if equals else ""
    return key, Document({}, problems=[Problem(path=key, message=message, fix=fix, where=origin.where)])


def _overruled(settings: Sequence[tuple[str, Document]]) -> Iterable[tuple[Location, Location]]:
    """Return the overrides of which a later one replaces a value by another one, each with that one, once."""
    given: list[tuple[Location, dict[str, Tree]]] = []
    for key, document in settings:
        where = document.key_places[key].where if key in document.key_places else None
        if where is None or document.problems:
            continue
        values = dict(_values(document.tree, key))
        lost = [
            place for place, others in given if any(_replaced_by(values, path, old) for path, old in others.items())
        ]
        yield from ((place, where) for place in lost)
        given = [*((place, others) for place, others in given if place not in lost), (where, values)]


def _values(tree: Tree, path: str) -> Iterable[tuple[str, Tree]]:
    """Return the values that a tree sets, by dotted path; a list is one value."""
    if isinstance(tree, dict):
        return [pair for key, value in tree.items() for pair in _values(value, join(path, key))]
    return [(path, tree)]


def _replaced_by(values: Mapping[str, Tree], path: str, old: Tree) -> bool:
    """Return whether one of the values stands at a path, above or below it, and differs from what was there."""
    for other, new in values.items():
        same = isinstance(old, Leaf) and isinstance(new, Leaf) and (old.text, old.quoted) == (new.text, new.quoted)
        if (other == path and not same) or path.startswith(f"{other}.") or other.startswith(f"{path}."):
            return True
    return False


def _key_places(documents: Iterable[Document]) -> dict[str, Origin]:
    """Return where each key stands; the highest layer that has it wins, but an override moves no section."""
    places: dict[str, Origin] = {}
    for document in documents:
        for key, origin in document.key_places.items():
            if origin.kind == "file" or key not in places or not _is_section(key):
                places[key] = origin
    return places


def _is_section(key: str) -> bool:
    """Return whether a key names a section of the recipe."""
    return any(key == name and is_dataclass(hint) for name, hint in hints_of(Recipe).items())


def _drop_untouched_sections(tree: dict[str, Tree], key_places: dict[str, Origin]) -> None:
    """Leave out required sections that nobody wrote, so that one problem is reported, not one for each key."""
    for spec in fields(Recipe):
        if default_of(spec) is MISSING and is_dataclass(hints_of(Recipe)[spec.name]) and spec.name not in key_places:
            tree.pop(spec.name, None)
