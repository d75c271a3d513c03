"""A changelog fragment and summary of a change."""

from __future__ import annotations

from moeframe_compat.render.summary import headline, plural
from moeframe_compat.report import Report
from moeframe_compat.rules.base import Finding, catalogue


def markdown(report: Report) -> str:
    """The report as Markdown."""
    out = [f"## API of {report.package}: {report.old} to {report.new}", "", headline(report), ""]
    for title, severity in (("Breaking", "error"), ("Behaves differently", "warning")):
        groups = [g for g in report.causes.values() if g[0].severity == severity]
        if groups:
            out += [f"### {title}", "", *(_line(g) for g in groups), ""]
    if report.added:
        out += ["### Added", "", *(f"- `{a}`" for a in report.added), ""]
    hushed = [f for f in report.findings if f.suppressed]
    if hushed:
        out += ["### Accepted", "", *(f"- `{f.symbol}` ({f.rule}): {f.suppressed}" for f in hushed), ""]
    for title, rows in (("Stale", report.stale), ("Not checked", report.skipped)):
        if rows:
            out += [f"### {title}", "", *(f"- {r}" for r in rows), ""]
    return "\n".join(out).rstrip() + "\n"


def _line(group: list[Finding]) -> str:
    f = group[0]
    more = (
        f" (and {plural(len(group) - 1, 'more place') if len(group) > 2 else '1 more place'})" if len(group) > 1 else ""
    )
    arrow = f" is now `{f.new}`" if f.new and f.old and len(f.new) < 60 else ""
    return (
        f"- `{f.symbol}`{arrow}{more}: {catalogue()[f.rule].title}; {f.why}. {f.fix[:1].upper()}{f.fix[1:]}. [{f.rule}]"
    )
