"""GitHub workflow commands: annotations on the lines of the new release."""

from __future__ import annotations

from moeframe_compat.render.summary import headline
from moeframe_compat.report import Report
from moeframe_compat.rules.base import catalogue


def github(report: Report) -> str:
    """`::error file=...,line=...::...` for every breaking finding, then the summary as a notice."""
    lines = []
    for group in report.causes.values():
        for f in group:
            where = f"file={_property(f.file)},line={f.line},title={_property(f'{f.rule} {catalogue()[f.rule].title}')}"
            lines.append(f"::{f.severity} {where}::{_data(f'{f.symbol}: {f.why}. Fix: {f.fix} [{f.id}]')}")
    lines += [f"::error title=stale::{_data(s)}" for s in report.stale]
    lines.append(f"::notice title=API check::{_data(headline(report))}")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
