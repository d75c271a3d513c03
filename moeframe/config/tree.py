"""A recipe before it has types: nested dicts and lists whose leaves know their text and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from moeframe.errors import Location

__all__ = ["DEFAULT", "Expression", "Leaf", "Origin", "Tree", "join"]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where a value came from.

    `where` is the place in a file or the override's text, None for a default and a derived value. `anchor` names the
    YAML anchor that the value was written under, `expression` the ``${section.key}`` that brought it, `note` the rest
    of the story.
    """

    kind: Literal["file", "override", "default", "derived"]
    where: Location | None = None
    anchor: str | None = None
    expression: str | None = None
    note: str = ""

    def __str__(self) -> str:
        """Return what `explain` prints: ``recipes/x.yaml:3:5``, ``override train.steps=50``, ``default`` ..."""
        parts: list[str] = [str(self.where)] if self.kind == "file" else [self.kind]
        if self.kind == "override":
            parts.append(str(self.where))
        if self.anchor is not None:
            parts.append(f"(anchor {self.anchor!r})")
        if self.expression is not None:
            parts.append(f"= {self.expression}")
        if self.note:
            parts.append(f"({self.note})")
        return " ".join(parts)


DEFAULT = Origin(kind="default")


class Leaf:
    """A scalar as it was written: its text, whether it was quoted, and where it came from.

    Typing is left to the reader, who knows the field's type. Immutable by convention; OmegaConf carries leaves as
    opaque objects, so copying one returns itself.
    """

    __slots__ = ("origin", "quoted", "text")

    def __init__(self, text: str, *, quoted: bool, origin: Origin) -> None:
        """Keep the parts."""
        self.text = text
        self.quoted = quoted
        self.origin = origin

    @classmethod
    def of(cls, value: Any, origin: Origin = DEFAULT) -> Leaf:
        """Return the leaf that reads back as a Python scalar (None, bool, int, float or str)."""
        if isinstance(value, str):
            return cls(value, quoted=True, origin=origin)
        if value is None or isinstance(value, bool):
            return cls({None: "null", True: "true", False: "false"}[value], quoted=False, origin=origin)
        text = repr(value)
        return cls({"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(text, text), quoted=False, origin=origin)

    def __deepcopy__(self, memo: dict[int, Any]) -> Leaf:
        """Return the leaf itself."""
        return self

    def __str__(self) -> str:
        """Return the text, which is what an interpolation inside a longer text inserts."""
        return self.text


class Expression(str):
    """A scalar that holds ``${section.key}``; a str, so that OmegaConf resolves it."""

    __slots__ = ("origin", "quoted")

    origin: Origin
    quoted: bool

    @classmethod
    def of(cls, leaf: Leaf) -> Expression:
        """Return the leaf's text as an expression from the same place."""
        made = cls(leaf.text)
        made.origin = leaf.origin
        made.quoted = leaf.quoted
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Expression:
        """Return the expression itself."""
        return self


Tree: TypeAlias = "dict[str, Tree] | list[Tree] | Leaf | Expression"


def join(path: str, key: str | int) -> str:
    """Return the dotted path of a key below `path` ("" is the root)."""
    return f"{path}.{key}" if path else str(key)
