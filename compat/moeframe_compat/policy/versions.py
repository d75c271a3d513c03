"""Versions: comparing them, and which bump a set of findings needs."""

from __future__ import annotations

import re

BUMPS = ("none", "patch", "minor", "major")


def release(version: str) -> tuple[int, ...]:
    """The numbers a version starts with: `0.2.0.dev1` gives (0, 2, 0)."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    return tuple(int(n) for n in found[1].split(".")) if found else ()


def _padded(version: str) -> tuple[int, ...]:
    numbers = release(version)
    return (*numbers, *([0] * (4 - len(numbers))))


def at_least(version: str, other: str) -> bool:
    """Is `version` the release `other`, on the way to it, or later?"""
    return bool(release(version)) and _padded(version) >= _padded(other)


def bump(old: str, new: str) -> str:
    """How far apart two versions are: none, patch, minor, major; "" if one is unknown."""
    if not release(old) or not release(new):
        return ""
    a, b = _padded(old), _padded(new)
    if a[0] != b[0]:
        return "major"
    if a[1] != b[1]:
        return "minor"
    return "patch" if a != b else "none"


def needed_bump(old: str, *, breaking: bool, added: bool) -> str:
    """The smallest allowed bump. Before 1.0 a break needs a minor one, as semver is read in practice."""
    early = bool(release(old)) and release(old)[0] == 0
    if breaking:
        return "minor" if early else "major"
    if added:
        return "patch" if early else "minor"
    return "none"
