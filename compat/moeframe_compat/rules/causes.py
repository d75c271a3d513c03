"""Findings to causes: one rename, one rewritten class is one cause, however many objects it touches."""

from __future__ import annotations

import re
from collections import Counter

from moeframe_compat.rules.base import Finding

_RENAME = re.compile(r"^rename:(\w+)->(\w+)$")


def merge_causes(findings: list[Finding]) -> None:
    """Make findings that only repeat another's cause share it.

    A name that was renamed in several places is one rename: where the same old name is merely gone (a removed
    parameter, attribute or field), it joins. So does what an enum's lost member does to its users.
    """
    renames: dict[str, Counter[str]] = {}
    for f in findings:
        found = _RENAME.match(f.cause)
        if found:
            renames.setdefault(found[1], Counter())[found[2]] += 1
    for f in findings:
        name = _name(f.symbol)
        if name in renames and f.rule in ("PY101", "PY102", "PY201", "PY301", "CF001", "PL002", "PA005"):
            successor, times = renames[name].most_common(1)[0]
            if times > 1 or f.cause.startswith(("param-removed:", "field:")):
                f.cause = f"rename:{name}->{successor}"
    _join_families(findings, renames)


def _join_families(findings: list[Finding], renames: dict[str, Counter[str]]) -> None:
    """Several old names that all became one new name are one rename: a_pgs and b_pgs both became pg_collection."""
    heirs: dict[str, set[str]] = {}
    for old, counts in renames.items():
        heirs.setdefault(counts.most_common(1)[0][0], set()).add(old)
    for f in findings:
        found = _RENAME.match(f.cause)
        if found and len(heirs.get(found[2], ())) > 1:
            main = max(heirs[found[2]], key=lambda n: (sum(renames[n].values()), n))
            f.cause = f"rename:{main}->{found[2]}"


def _name(symbol: str) -> str:
    inner = re.search(r"\((\w+)\)$", symbol)
    return inner[1] if inner else symbol.rpartition(".")[2]


def causes(findings: list[Finding]) -> dict[str, list[Finding]]:
    """Findings by cause, the gravest first in each, causes in the order of their first finding."""
    rank = {"error": 0, "warning": 1, "info": 2}
    out: dict[str, list[Finding]] = {}
    for f in findings:
        out.setdefault(f.cause, []).append(f)
    for group in out.values():
        group.sort(key=lambda f: (rank[f.severity], f.rule, f.symbol))
    return dict(sorted(out.items(), key=lambda item: (rank[item[1][0].severity], item[1][0].rule, item[1][0].symbol)))
