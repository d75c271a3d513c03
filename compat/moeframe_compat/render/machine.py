"""For programs."""

from __future__ import annotations

import json
from typing import Any

from moeframe_compat.report import Report
from moeframe_compat.rules.base import Finding


def as_json(report: Report) -> str:
    """The report as one JSON object."""
    data = {
        "package": report.package,
        "old": report.old,
        "new": report.new,
        "findings": [_finding(f) for f in report.findings],
        "causes": len(report.causes),
        "stale": report.stale,
        "skipped": report.skipped,
        "added": report.added,
        "objects": report.objects,
        "needed_bump": report.needed,
        "declared_bump": report.declared,
        "exit_code": report.exit_code,
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def _finding(f: Finding) -> dict[str, Any]:
    row: dict[str, Any] = {
        "rule": f.rule,
        "severity": "info" if f.suppressed else f.severity,
        "kind": f.kind,
        "audience": list(f.audience),
        "symbol": f.symbol,
        "old": f.old,
        "new": f.new,
        "file": f.file,
        "line": f.line,
        "old_file": f.was[0],
        "old_line": f.was[1],
        "why": f.why,
        "fix": f.fix,
        "id": f.id,
        "cause": f.cause,
    }
    extras = {"policy": f.policy, "suppressed": f.suppressed, "notes": f.notes}
    return row | {name: value for name, value in extras.items() if value}
