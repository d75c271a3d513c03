"""What the rules of how parts fit together find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["FitRule", "Misfit", "counted", "one_of", "setting"]


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """One thing that does not fit, and where ways out may lie.

    `ways` are settings of this recipe's own keys that mend it, as a command line has them. `layouts` are degrees of
    `parallel` that would mend it with as many processes as they need, and `kinds` those of which another backend may
    fit: both are tried before they are told. `otherwise` is what to do when nothing of all this is to be had.
    """

    path: str
    message: str
    ways: Sequence[str] = ()
    layouts: Sequence[Mapping[str, int]] = ()
    kinds: Sequence[str] = ()
    otherwise: str = ""


FitRule = Callable[["Composition"], Iterable[Misfit]]


def one_of(values: Sequence[object]) -> str:
    """Return values as a choice: ``1, 2 or 4``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} or {last}" if most else last


def counted(number: int, word: str) -> str:
    """Return a number with its noun: ``2 ranks``, ``2 micro-batches``."""
    ending = "es" if word.endswith("ch") else "s"
    return f"{number} {word}{'' if number == 1 else ending}"


def setting(key: str, values: Sequence[object]) -> list[str]:
    """Return a key with its legal values as one way; no way when there is no value."""
    return [f"{key}={one_of(values)}"] if values else []
