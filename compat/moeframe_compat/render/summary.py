"""The counts that every format shows."""

from __future__ import annotations

from moeframe_compat.report import Report


def plural(number: int, word: str) -> str:
    """`1 error`, `2 errors`."""
    return f"{number} {word}" + ("" if number == 1 else "s")


def headline(report: Report) -> str:
    """`2 errors, 1 warning from 3 causes (47 objects); needed bump: minor (0.x) | declared: patch`."""
    errors = sum(f.severity == "error" for f in report.breaking)
    warnings = len(report.breaking) - errors
    early = " (0.x)" if report.old_version.startswith("0.") and report.needed != "none" else ""
    counts = f"{plural(errors, 'error')}, {plural(warnings, 'warning')} from {plural(len(report.causes), 'cause')}"
    bumps = f"needed bump: {report.needed}{early} | declared: {report.declared or 'unknown'}"
    return f"{counts} ({plural(report.objects, 'object')}); {bumps}"
