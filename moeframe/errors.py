"""What can go wrong, as types.

Every error says what was given, where, the rule with its numbers, and the way out.
Exception types and their attributes are public; message texts are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

__all__ = [
    "ContractError",
    "DuplicateOfferError",
    "JobFailedError",
    "Location",
    "MoeframeDeprecationWarning",
    "MoeframeError",
    "PluginError",
    "PluginLoadError",
    "Problem",
    "RecipeError",
    "TopologyError",
    "UnavailableOfferError",
    "UnknownOfferError",
    "UserInputError",
]


@dataclass(frozen=True, kw_only=True)
class Location:
    """A place in a recipe file, or the override that set a value.

    `line` and `column` count from 1. A value that came from an override has `file` set to the
    override's text (``train.steps=50``) and neither line nor column.
    """

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """Return ``file:line:column`` with the parts that are known."""
        parts = [self.file]
        parts += [str(number) for number in (self.line, self.column) if number is not None]
        return ":".join(parts)


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with a recipe.

    `path` is the dotted key (``parallel.ep``; "" is the whole file), `message` says what was given and which rule it
    breaks with the rule's numbers, `fix` says the way out, `where` is the place in the source when one is known.
    """

    path: str
    message: str
    fix: str
    where: Location | None = None

    def __str__(self) -> str:
        """Return the problem as one line: place, key, message, fix."""
        place = f"{self.where}: " if self.where is not None else ""
        key = f"{self.path}: " if self.path else ""
        return f"{place}{key}{self.message} {self.fix}".rstrip()


class MoeframeDeprecationWarning(DeprecationWarning):
    """An old name of a recipe key or of Python code still works, until the version that the message tells."""


class MoeframeError(Exception):
    """Base of every error that moeframe raises on purpose; `exit_code` is what a command ends with."""

    exit_code: ClassVar[int] = 1


class UserInputError(MoeframeError):
    """The user's input was refused (exit code 2)."""

    exit_code: ClassVar[int] = 2


class RecipeError(UserInputError):
    """A recipe cannot be used. `problems` holds every one that was found, at least one."""

    def __init__(self, problems: list[Problem] | tuple[Problem, ...]) -> None:
        """Keep the problems and build a message with one line for each."""
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PluginError(UserInputError):
    """A plugin is broken, or what was asked of it cannot be had."""

    def __reduce__(self) -> tuple[type[PluginError], tuple[object, ...]]:
        """Pickle by the fields of the dataclass, so that the error can cross processes."""
        names = getattr(self, "__dataclass_fields__", {})
        return type(self), tuple(getattr(self, name) for name in names) or self.args


@dataclass(eq=False)
class PluginLoadError(PluginError):
    """A plugin could not be loaded or registered. The cause is in ``__cause__`` when there is one."""

    message: str
    plugin: str = ""
    distribution: str = ""
    version: str = ""

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@dataclass(eq=False)
class UnknownOfferError(PluginError):
    """No plugin offers the name that was asked for; `offered` lists what there is."""

    kind: str
    name: str
    message: str
    offered: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@dataclass(eq=False)
class DuplicateOfferError(PluginError):
    """Two plugins offer the name that was asked for; `distributions` names both."""

    kind: str
    name: str
    message: str
    distributions: tuple[str, ...] = field(default=())

    def __str__(self) -> str:
        """Return the message."""
        return self.message


@dataclass(eq=False)
class UnavailableOfferError(PluginError):
    """The backend is offered, but this machine or this job cannot use it; `reasons` says why and what to do."""

    kind: str
    name: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line with every reason."""
        return f"{self.kind} {self.name!r} cannot be used here: " + "; ".join(self.reasons)


class TopologyError(UserInputError):
    """The number of processes does not fit the recipe's parallel layout."""


class ContractError(MoeframeError):
    """A backend or a caller broke a protocol: wrong shape, duplicate expert, disagreeing splits."""


class JobFailedError(MoeframeError):
    """A running job failed for a reason that is not the user's input."""
