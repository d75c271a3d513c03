"""Which key was meant by one that does not exist."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

__all__ = ["did_you_mean", "near_keys"]

_SURE: Final = 0.75
_MOST: Final = 3
_SHORTEST_BEGINNING: Final = 4


def near_keys(key: str, known: Sequence[str]) -> list[str]:
    """Return the known keys that `key` may stand for: misspelt, or right but in another section.

    Args:
        key: a dotted key that is not among the known ones.
        known: dotted keys.
    """
    section, _, name = key.rpartition(".")
    beside = [path for path in known if path.rpartition(".")[0] == section]
    leaves = [path.rpartition(".")[2] for path in known]
    exact = [path for path, leaf in zip(known, leaves, strict=True) if leaf == name]
    begun = [path for path in beside if len(name) >= _SHORTEST_BEGINNING and path.startswith(key)]
    alike = get_close_matches(name, leaves, n=1, cutoff=_SURE)
    return (
        exact[:_MOST]
        or get_close_matches(key, beside, n=1, cutoff=_share_of(section, name))
        or begun[:_MOST]
        or get_close_matches(key, known, n=1, cutoff=_SURE)
        or [path for path, leaf in zip(known, leaves, strict=True) if leaf in alike][:_MOST]
    )


def _share_of(section: str, name: str) -> float:
    """Return the similarity that two keys need when what they share is a section, so that their names must be alike."""
    shared = 2 * (len(section) + 1) if section else 0
    return (shared + 2 * _SURE * len(name)) / (shared + 2 * len(name)) if name else 1.0


def did_you_mean(keys: Sequence[str]) -> str:
    """Return keys as a question: ``Did you mean 'a' or 'b'?``."""
    return f"Did you mean {' or '.join(map(repr, keys))}?"
