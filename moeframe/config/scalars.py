"""What a plain YAML scalar says, and what it may be mistaken for.

Recipes read numbers and booleans as YAML 1.2 does (``1e-4`` is a number). What YAML 1.1 reads in a second way (``no``,
``12:30:45``, ``010``, ``2024-01-01``) is never guessed.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

from moeframe.config.tree import Leaf

__all__ = [
    "MISSING_TEXT",
    "MOST_DIGITS",
    "Kind",
    "describe",
    "is_null",
    "kind_of",
    "read_bool",
    "read_float",
    "read_int",
    "untyped",
]

MISSING_TEXT: Final = "???"
MOST_DIGITS: Final = 100
"""Of a whole number: more than any key takes, and few enough to work with."""
"""A value that somebody else must give; quoted too, since flow style demands quotes."""

Kind: TypeAlias = Literal["text", "null", "bool", "yes_no", "int", "float", "sexagesimal", "date", "radix"]

_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_YES_NO: Final = frozenset({"yes", "no", "on", "off"})  # y and n too by the letter of YAML 1.1, but no reader follows
_INT: Final = re.compile(r"[-+]?(0|[1-9][0-9]*(_[0-9]+)*)")
_FLOAT: Final = re.compile(
    r"[-+]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_SEXAGESIMAL: Final = re.compile(r"[-+]?[0-9]+(:[0-9]+)+(\.[0-9]*)?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt \t].*)?")
_RADIX: Final = re.compile(r"[-+]?(0[0-9_]+(\.[0-9]*)?([eE][-+]?[0-9]+)?|0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+)")
_SPOKEN: Final[dict[Kind, str]] = {
    "text": "text",
    "null": "null",
    "bool": "a boolean",
    "yes_no": "a boolean in YAML 1.1 and text in YAML 1.2",
    "int": "a whole number",
    "float": "a number",
    "sexagesimal": "a number in base 60 in YAML 1.1 and text in YAML 1.2",
    "date": "a date in YAML 1.1 and text in YAML 1.2",
    "radix": "a number that YAML 1.1 and 1.2 read differently",
}


def kind_of(leaf: Leaf) -> Kind:
    """Return what the leaf's text is to YAML; a quoted leaf is text."""
    text = leaf.text
    if leaf.quoted:
        return "text"
    if text in _NULLS:
        return "null"
    if text in _BOOLS:
        return "bool"
    if text.lower() in _YES_NO:
        return "yes_no"
    patterns: tuple[tuple[Kind, re.Pattern[str]], ...] = (
        ("int", _INT),
        ("float", _FLOAT),
        ("sexagesimal", _SEXAGESIMAL),
        ("date", _DATE),
        ("radix", _RADIX),
    )
    return next((kind for kind, pattern in patterns if pattern.fullmatch(text)), "text")


def describe(leaf: Leaf) -> str:
    """Return what was given, for a message: the text and how YAML reads it where that may surprise."""
    kind = kind_of(leaf)
    if leaf.quoted:
        return f"the quoted text {leaf.text!r}"
    if kind == "int" and len(leaf.text) > MOST_DIGITS:
        return f"a number of {len(leaf.text):,} digits"
    if kind == "null":
        return f"{leaf.text} (null)" if leaf.text not in ("", "null") else ("null" if leaf.text else "nothing (null)")
    return f"{leaf.text!r}" if kind == "text" else f"{leaf.text} ({_SPOKEN[kind]})"


def is_null(leaf: Leaf) -> bool:
    """Return whether the leaf says null."""
    return kind_of(leaf) == "null"


def read_int(leaf: Leaf) -> int | None:
    """Return the whole number that the leaf says, None when it says something else."""
    return int(leaf.text) if kind_of(leaf) == "int" and len(leaf.text) <= MOST_DIGITS else None


def read_float(leaf: Leaf) -> float | None:
    """Return the number that the leaf says, None when it says something else."""
    if kind_of(leaf) not in ("int", "float"):
        return None
    text = leaf.text.lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan") if text[-1] in "fn" else text)


def read_bool(leaf: Leaf) -> bool | None:
    """Return the truth value that the leaf says (true, false, 1 or 0), None when it says something else."""
    if leaf.quoted:
        return None
    return {**_BOOLS, "1": True, "0": False}.get(leaf.text)


def untyped(leaf: Leaf) -> tuple[bool, bool | int | float | str | None]:
    """Return (true, value) for a field of any type, (false, None) when the text could mean two things."""
    match kind_of(leaf):
        case "null":
            return True, None
        case "bool":
            return True, _BOOLS[leaf.text]
        case "int":
            return len(leaf.text) <= MOST_DIGITS, read_int(leaf)
        case "float":
            return True, read_float(leaf)
        case "text":
            return True, leaf.text
    return False, None
