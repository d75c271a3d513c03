"""The options of a backend, from what a recipe wrote to the dataclass that the backend asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeframe.config.provenance import Provenance
from moeframe.config.tree import Tree
from moeframe.config.typed import HOLE, Reader, tree_of
from moeframe.errors import Problem

__all__ = ["typed_options"]


def typed_options(
    options_dataclass: type[Any], mapping: Mapping[str, Any], path: str, provenance: Provenance, *, owner: str = ""
) -> tuple[Any, list[Problem]]:
    """Return an instance of the options dataclass, and every problem.

    Args:
        options_dataclass: its fields may be bool, int, float, str, Literal, lists, tuples, mappings, dataclasses and
            unions of them; every field has a default.
        mapping: what the recipe gives. An int is good for a float field; a bool is no number.
        path: dotted path of the mapping, such as ``dispatcher.options``.
        provenance: knows how the values were written, so that typing sees quotes; may be empty.
        owner: the backend, in words, such as ``dispatcher 'alltoall'``.

    Returns:
        The instance and no problem; or with problems, an instance in which unreadable values are `HOLE`, or `HOLE`.
    """
    written = provenance.written(path)
    tree: Tree = written if isinstance(written, dict) else tree_of(mapping)
    spoken = {path: f"the options of {owner}"} if owner else {}
    reader = Reader(provenance.key_places, top=provenance.where(path), spoken=spoken)
    try:
        instance = reader.read_dataclass(options_dataclass, tree, path)
    except NameError as error:
        message = f"the plugin's class {options_dataclass.__name__} has types that cannot be read: {error}."
        fix = "Its author must import them at run time, not under TYPE_CHECKING."
        return HOLE, [Problem(path=path, message=message, fix=fix, where=provenance.where(path))]
    return instance, reader.problems
