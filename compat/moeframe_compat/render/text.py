"""For people."""

from __future__ import annotations

from moeframe_compat.render.summary import headline, plural
from moeframe_compat.report import Report
from moeframe_compat.rules.base import Finding, catalogue

_SHOWN = 6


def text(report: Report) -> str:
    """The report as plain text: one block per cause."""
    out: list[str] = []
    for group in report.causes.values():
        out += _block(group, report)
    hushed = [f for f in report.findings if f.suppressed]
    out += [f"suppressed {f.rule} {f.symbol}: {f.suppressed}" for f in hushed]
    out += [f"stale {s}" for s in report.stale]
    out += [f"skipped {s}" for s in report.skipped]
    notes = [f for f in report.findings if f.severity == "info"]
    if notes:
        out.append(f"{plural(len(notes), 'note')} not counted (--format json lists them)")
    out.append(headline(report))
    return "\n".join(out) + "\n"


def _block(group: list[Finding], report: Report) -> list[str]:
    first = group[0]
    lines = [
        f"{first.severity} {first.rule} {catalogue()[first.rule].title}: {_change(first)}"
        f"   [{', '.join(first.audience)}]",
        f"  old  {first.was[0]}:{first.was[1]} @{report.old}    new  {first.file}:{first.line}",
        f"  why  {first.why}",
        *(f"  note {n}" for n in first.notes),
        f"  fix  {first.fix}",
    ]
    if len(group) > 1:
        lines.append(f"  also {plural(len(group) - 1, 'finding')} of the same cause:")
        lines += [f"       {f.rule} {f.symbol}  {f.file}:{f.line}" for f in group[1 : _SHOWN + 1]]
        if len(group) > _SHOWN + 1:
            lines.append(f"       and {len(group) - 1 - _SHOWN} more")
    lines.append(f"  id   {first.id}")
    return lines


def _change(f: Finding) -> str:
    short = len(f.old) < 60 and len(f.new) < 60
    if f.new and not f.old:  # an arrow would say that something became this
        return f"{f.symbol} (new: {f.new})" if short and f.new not in f.symbol else f"{f.symbol} (new)"
    if f.old and f.new and short and f.old not in f.symbol:
        return f"{f.symbol}: {f.old} -> {f.new}"
    return f"{f.symbol} -> {f.new}" if f.new and short else f.symbol
