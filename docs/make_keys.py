"""Writes keys.md, the table of every recipe key, from the dataclasses: ``python docs/make_keys.py``."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from moeframe.config.dump import scalar_text
from moeframe.config.schema import BACKEND_SECTIONS, Recipe
from moeframe.config.typed import default_of
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.kinds import KINDS
from moeframe.hooks.manager import build_plugin_manager
from moeframe.protocols.paths import path_rule

PAGE: Final = Path(__file__).with_name("keys.md")

_TYPES: Final = {int: "integer", float: "number", bool: "true or false", str: "text", Any: "any", type(None): "null"}
_HEAD: Final = "| key | type | default | what it is |\n|---|---|---|---|"
_EXTENDS: Final = (
    "Recipes that this one builds on, relative to it; from left to right, own keys win. No override sets it."
)
_INTRO: Final = """\
# Every key of a recipe

[recipes.md](recipes.md) says how recipes work; `moeframe explain RECIPE` shows the values of one. A key without a
default is required. The options at the end are those of the backends that ship with moeframe.

<!-- Made by docs/make_keys.py from the dataclasses; change it there. -->
"""


def field_docs(cls: type[Any]) -> dict[str, str]:
    """Return the docstring below each field of a dataclass, as one line."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found, name = {}, ""
    for statement in node.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            found[name] = " ".join(str(statement.value.value).split())
            name = ""
        else:
            name = ""
    return found


def type_words(hint: Any) -> str:
    """Return a type as the table shows it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _TYPES:
        return _TYPES[hint]
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(type_words(option) for option in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)} {type_words(arguments[0])}s"
    if origin in (list, tuple, Sequence):
        words = type_words(arguments[0])
        return f"list of {words}" if get_origin(arguments[0]) is Literal else f"list of {words}s"
    return "section"


def _row(key: str, words: str, default: str, description: str) -> str:
    cells = (f"`{key}`", words, default, description.replace("``", "`"))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _rows(cls: type[Any], prefix: str = "") -> Iterator[str]:
    """Yield a line of the table for every field, those of nested sections behind their section."""
    hints, described = get_type_hints(cls), field_docs(cls)
    for spec in fields(cls):
        hint, default = hints[spec.name], default_of(spec)
        nested = next((option for option in (hint, *get_args(hint)) if is_dataclass(option)), None)
        if nested is hint:
            yield from _rows(hint, f"{prefix}{spec.name}.")
            continue
        if default is MISSING:
            shown = "required"
        elif nested is None and isinstance(default, dict):
            shown = "`{}`"
        else:
            shown = f"`{scalar_text(default)}`"
        words = type_words(hint).replace("text", "path") if path_rule(spec.metadata) else type_words(hint)
        yield _row(prefix + spec.name, words, shown, described.get(spec.name, ""))
        if nested is not None:
            assert isinstance(nested, type)
            yield from _rows(nested, f"{prefix}{spec.name}.")


def page() -> str:
    """Return the whole page."""
    hints = get_type_hints(Recipe)
    described = field_docs(Recipe)
    parts = [_INTRO, "## Top level", "", _HEAD]
    parts += [_row(name, type_words(hints[name]), "required", described[name]) for name in ("schema_version", "name")]
    parts += [_row("extends", "list of paths", "`[]`", _EXTENDS), ""]
    for spec in fields(Recipe):
        section = hints[spec.name]
        if is_dataclass(section):
            assert isinstance(section, type)
            about = " ".join((section.__doc__ or "").split("\n\n")[0].split())
            parts += [f"## {spec.name}", "", about, "", _HEAD, *_rows(section), ""]
    catalog = Catalog(build_plugin_manager((), listing=True))
    assert set(KINDS) == set(BACKEND_SECTIONS)
    for kind in BACKEND_SECTIONS:
        for record in catalog.offers(kind):
            options = record.offer.options
            if record.origin.distribution == "moeframe" and fields(options):
                parts += [f"## {kind}.options of `{record.offer.name}`", "", _HEAD, *_rows(options), ""]
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.name}\n")
