"""Words for what a recipe gave, what was wanted, and the way out."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

from moeframe.config.scalars import MOST_DIGITS, describe, kind_of, read_float, read_int
from moeframe.config.tree import Leaf, Tree

__all__ = ["advice", "other_reading", "shape_of", "spoken_type", "yaml_reading"]

_READINGS: Final = {
    "null": "null",
    "bool": "a boolean",
    "yes_no": "a boolean in YAML 1.1",
    "int": "a number",
    "float": "a number",
    "sexagesimal": "a number in base 60 in YAML 1.1",
    "date": "a date in YAML 1.1",
    "radix": "a number",
}


def spoken_type(hint: Any) -> str:
    """Return a type in the words of a message."""
    origin, arguments = get_origin(hint), get_args(hint)
    simple = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Any: "any value"}
    if hint in simple:
        return simple[hint]
    if origin is Literal:
        return ("one of " if len(arguments) > 1 else "") + ", ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if option is type(None) else spoken_type(option) for option in arguments)
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)}: [{', '.join(spoken_type(option) for option in arguments)}]"
    if origin in (list, tuple, Sequence):
        return f"a list, each entry {spoken_type(arguments[0])}"
    return "a mapping (a section with keys)"


def yaml_reading(leaf: Leaf) -> str:
    """Return what YAML takes an unquoted scalar for."""
    return _READINGS[kind_of(leaf)]


def shape_of(tree: Tree) -> str:
    """Return what was given where another shape was wanted."""
    if isinstance(tree, dict):
        return "a mapping"
    if isinstance(tree, list):
        return "a list"
    assert isinstance(tree, Leaf)
    return describe(tree)


def other_reading(leaf: Leaf) -> str:
    """Return how to write the other reading of an ambiguous scalar."""
    kind = kind_of(leaf)
    if kind == "yes_no":
        return f"write {'true' if leaf.text.lower() in ('yes', 'on') else 'false'}"
    return "write a plain decimal number"


def advice(hint: Any, leaf: Leaf) -> str:  # noqa: PLR0911  one return for each mistake
    """Return the way out when a scalar is of the wrong type."""
    kind = kind_of(leaf)
    if leaf.text == "None" and not leaf.quoted:
        return "Python's None is null in YAML, and null is not allowed here; give a value."
    if kind == "null":
        return "Give a value, or remove the line."
    if hint is bool:
        if leaf.text.lower() in ("yes", "on", "true"):
            return "Write true."
        return "Write false." if leaf.text.lower() in ("no", "off", "false") else "Write true or false."
    if kind == "int" and len(leaf.text) > MOST_DIGITS:
        return f"Write at most {MOST_DIGITS} digits."
    unquoted = Leaf(leaf.text, quoted=False, origin=leaf.origin)
    if leaf.quoted and (read_int(unquoted) if hint is int else read_float(unquoted)) is not None:
        return f"Remove the quotes: {leaf.text}."
    number = read_float(leaf)
    if hint is int and number is not None and number.is_integer():
        return f"Write {int(number)}."
    return (
        "Write a whole number in decimal digits, such as 200."
        if hint is int
        else "Write a number, such as 0.1 or 1e-4."
    )
