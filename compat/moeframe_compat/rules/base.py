"""Rules as data, findings, and the list of rules."""

from __future__ import annotations

import functools
import hashlib
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files

SEVERITIES = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: its stable code, what it means, and what it is by default."""

    code: str
    title: str
    severity: str
    kind: str
    audience: tuple[str, ...]


@dataclass(slots=True)
class Finding:
    """One difference that somebody may notice.

    `cause` groups findings of one origin; `was` is the old place; `policy` names why a severity was lowered.
    """

    rule: str
    severity: str
    kind: str
    audience: tuple[str, ...]
    symbol: str
    old: str
    new: str
    file: str
    line: int
    was: tuple[str, int]
    why: str
    fix: str
    cause: str = ""
    policy: str = ""
    suppressed: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def id(self) -> str:
        """A name for the finding that survives other changes around it."""
        text = f"{self.rule}\0{self.symbol}\0{self.old}\0{self.new}"
        return f"{self.rule}:{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def breaking(self) -> bool:
        """Does it count?"""
        return self.severity in ("error", "warning")


@functools.cache
def catalogue() -> dict[str, Rule]:
    """All rules by code."""
    data = tomllib.loads(files("moeframe_compat.rules").joinpath("catalogue.toml").read_text(encoding="utf-8"))
    return {code: Rule(code, title, sev, kind, tuple(aud)) for code, (title, sev, kind, aud) in data.items()}


@functools.cache
def explanations() -> dict[str, dict[str, str]]:
    """Docs paragraphs by code: `code` (yours), `breaks`, `fix`."""
    data = tomllib.loads(files("moeframe_compat.rules").joinpath("explanations.toml").read_text(encoding="utf-8"))
    return {code: dict(entry) for code, entry in data.items()}
