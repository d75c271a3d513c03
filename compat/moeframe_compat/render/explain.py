"""`explain`: what a rule means, with code before and after."""

from __future__ import annotations

from moeframe_compat.errors import UsageError
from moeframe_compat.rules.base import catalogue, explanations


def explain(code: str) -> str:
    """The docs paragraph of a rule.

    Raises:
        UsageError: No such rule.
    """
    rule = catalogue().get(code.upper())
    if rule is None:
        near = ", ".join(c for c in catalogue() if c[:2] == code.upper()[:2])
        raise UsageError(f"no rule {code!r}; " + (f"of this family: {near}" if near else "`explain` lists them"))
    words = explanations()[rule.code]
    return "\n".join(
        [
            f"{rule.code}  {rule.title}",
            f"{rule.severity}, {rule.kind}; hits: {', '.join(rule.audience)}",
            "",
            "your code",
            *_indented(words["yours"]),
            "",
            "the change that breaks it",
            *_indented(words["change"]),
            "",
            "the fix",
            *_indented(words["fix"]),
            "",
        ]
    )


def _indented(text: str) -> list[str]:
    return [f"    {line}".rstrip() for line in text.strip("\n").splitlines()]


def listing() -> str:
    """All rules, one a line."""
    return "".join(f"{r.code}  {r.severity:8}{r.kind:7} {r.title}\n" for r in catalogue().values())
