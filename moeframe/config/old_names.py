"""Shims: old names in Python code go on working for their window. What became of them stands in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from enum import Enum
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

from moeframe.config.ledger import changes, find_change, tell_caller

if TYPE_CHECKING:
    from typing_extensions import deprecated
else:

    def deprecated(message: str, /) -> Callable[[Any], Any]:
        """Mark an overload or a member for type checkers and editors (PEP 702); the ledger does the warning."""

        def mark(marked: Any) -> Any:
            marked.__deprecated__ = message
            return marked

        return mark


__all__ = ["ABSENT", "Absent", "carried_over", "deprecated", "read_by_old_name", "takes_old_fields"]

T = TypeVar("T")


class Absent(Enum):
    """The type of `ABSENT`."""

    ABSENT = "not given"


ABSENT: Final = Absent.ABSENT
"""The default of an old parameter: None and false are values, and are carried over."""


def carried_over(name: str, old: T | Absent, new: T, *, unset: T, stacklevel: int = 2) -> T:
    """Return the value of a parameter that may have been given by its old name.

    Args:
        name: the entry's `old`, such as ``pkg.function(old_parameter)``.
        old: what was given by the old name; `ABSENT` for nothing.
        new: what was given by the new name.
        unset: the default of `new`.
        stacklevel: 2 when the function with the parameter calls this one, one more for each function between.

    Raises:
        TypeError: both are given and differ, or the old name's time is over.
    """
    if isinstance(old, Absent):
        return new
    change = find_change("python", name)
    owner, _, parameter = name.removesuffix(")").partition("(")
    successor = change.new.removesuffix(")").rpartition("(")[2]
    if change.is_over:
        raise TypeError(f"{owner}: given {parameter}={old!r}, but {change.refusal} Write {successor}.")
    value: T = change.renamed(old)
    if new is not unset and new != value:
        raise TypeError(
            f"{owner}: given {parameter}={old!r} and {successor}={new!r}, which contradict each other: {parameter} is "
            f"the old name of {successor}. Give {successor} only."
        )
    tell_caller(change, f"Write {successor}={value!r}.", stacklevel=stacklevel + 1)
    return value


def read_by_old_name(owner: object, name: str, *, stacklevel: int = 2) -> Any:
    """Return an attribute that is read by its old name.

    Args:
        owner: has the attribute.
        name: the entry's `old`, such as ``pkg.Class(old_field)``.
        stacklevel: as for `carried_over`.

    Raises:
        AttributeError: the old name's time is over.
    """
    change = find_change("python", name)
    successor = change.new.removesuffix(")").rpartition("(")[2]
    if change.is_over:
        raise AttributeError(f"{change.refusal} Read .{successor}.")
    tell_caller(change, f"Read .{successor}.", stacklevel=stacklevel + 1)
    return getattr(owner, successor)


def takes_old_fields(cls: type[T]) -> type[T]:
    """Let a dataclass be made with the old names of its fields, by keyword. Reading them takes a property each."""
    make: Any = cls.__init__
    home = f"{cls.__module__}.{cls.__qualname__}"
    known = {spec.name for spec in fields(cls)}  # type: ignore[arg-type]

    @wraps(make)
    def made(self: T, *args: Any, **given: Any) -> None:
        old_names = {change.old: change for change in changes("python")} if given.keys() - known else {}
        for name in [*given]:
            change = old_names.get(f"{home}({name})")
            if change is not None:
                successor = change.new.removesuffix(")").rpartition("(")[2]
                new = given.pop(successor, ABSENT)
                given[successor] = carried_over(change.old, given.pop(name), new, unset=ABSENT)
        make(self, *args, **given)

    cls.__init__ = made  # type: ignore[assignment, method-assign]
    return cls
