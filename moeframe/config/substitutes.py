"""What takes the place of backends that this machine cannot use, where the recipe names it (`on_unavailable`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from moeframe.config.schema import OnUnavailableConfig, Recipe
from moeframe.config.typed import UnknownValueError
from moeframe.errors import Problem

__all__ = ["Substitution", "effective", "named_substitute", "of_substitutes", "sentences"]


@dataclass(frozen=True, kw_only=True)
class Substitution:
    """A backend in place of one that this machine cannot use. `reasons`: why it cannot, each with what to do."""

    kind: str
    wanted: str
    used: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return it as a sentence."""
        return (
            f"{self.kind} {self.used!r} in place of {self.wanted!r} (on_unavailable.{self.kind}), which cannot be used "
            f"here: {sentences(self.reasons)}"
        )


def sentences(reasons: Iterable[str]) -> str:
    """Return reasons one after the other, to stand behind a colon: every sentence but the first has its capital."""
    first, *others = (f"{reason.rstrip('.')}." for reason in reasons)
    return " ".join([first, *(text[0].upper() + text[1:] for text in others)])


def of_substitutes(problems: Iterable[Problem], substitutions: Sequence[Substitution]) -> Iterator[Problem]:
    """Yield fit problems; what is wrong with a substitute is reported of it, not of what the recipe names."""
    for problem in problems:
        told = problem
        for one in substitutions:
            own = told.path == f"{one.kind}.name"
            said = f"{one.used!r}" if own else f"{one.kind} {one.used!r}"
            message = told.message.replace(said, f"{said} (in place of {one.wanted!r})", 1)
            told = replace(told, message=message)
            if own:
                way = f"Name another substitute, or {one.kind}.name={one.used} with the options it needs."
                told = replace(told, path=f"on_unavailable.{one.kind}", fix=way)
        yield told


def named_substitute(recipe: Recipe, kind: str) -> str | None:
    """Return the name that a recipe gives for a kind, None where it gives none or it could not be read."""
    with suppress(UnknownValueError):
        if kind in {spec.name for spec in fields(OnUnavailableConfig)}:
            name: Any = getattr(recipe.on_unavailable, kind)
            return None if name is None else str(name)
    return None


def effective(recipe: Recipe, substitutions: Iterable[Substitution]) -> Recipe:
    """Return the recipe that says outright what was substituted."""
    for one in substitutions:
        section = replace(getattr(recipe, one.kind), name=one.used, options={})
        open_ = replace(recipe.on_unavailable, **{one.kind: None})
        recipe = replace(recipe, on_unavailable=open_, **{one.kind: section})
    return recipe
