"""Suppressions: one finding each, with a reason and an end. Unused or expired ones are stale."""

from __future__ import annotations

import datetime
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from moeframe_compat.errors import UsageError, writing
from moeframe_compat.policy.versions import at_least
from moeframe_compat.rules.base import Finding, catalogue

MAX_DAYS = 180
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}$")
_FIELDS = ("rule", "symbol", "reason", "expires", "owner", "id")


@dataclass(slots=True)
class Suppression:
    """One entry; `expires` is a version or a date."""

    rule: str
    symbol: str
    reason: str
    expires: str
    owner: str = ""
    id: str = ""
    used: bool = False

    def covers(self, finding: Finding) -> bool:
        """Is it about this finding? Rule and whole symbol must agree, and the fingerprint if one is given."""
        return self.rule == finding.rule and self.symbol == finding.symbol and self.id in ("", finding.id)

    def expired(self, version: str, today: datetime.date) -> bool:
        """Is its end reached?"""
        if _DATE.match(self.expires):
            return datetime.date.fromisoformat(self.expires) < today
        return bool(version) and at_least(version, self.expires)


def load_suppressions(path: Path, today: datetime.date) -> list[Suppression]:
    """Read `[[suppress]]` tables.

    Raises:
        UsageError: The file is missing or an entry is incomplete, unknown, or lasts too long.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path.name}: no such file, and `suppressions` in the settings names it; `suppress` makes it"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as e:
        raise UsageError(f"{path.name}: {e}") from e
    entries = data.get("suppress", [])
    if set(data) - {"suppress"} or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise UsageError(f"{path.name}: expected [[suppress]] tables and nothing else")
    out = []
    for number, entry in enumerate(entries, 1):
        where = f"{path.name}: suppress {number}"
        missing = [k for k in ("rule", "symbol", "reason", "expires") if not str(entry.get(k, "")).strip()]
        unknown = sorted(set(entry) - set(_FIELDS))
        if missing or unknown:
            raise UsageError(
                f"{where}: {'lacks ' + ', '.join(missing) if missing else 'unknown ' + ', '.join(unknown)}"
            )
        made = _entry({k: str(entry.get(k, "")) for k in _FIELDS})
        check(made, where, today)
        out.append(made)
    return out


def _entry(row: dict[str, str]) -> Suppression:
    return Suppression(row["rule"], row["symbol"], row["reason"], row["expires"], row["owner"], row["id"])


def check(made: Suppression, where: str, today: datetime.date) -> None:
    """Refuse what is not allowed.

    Raises:
        UsageError: Unknown rule, wildcard, or an end too far away.
    """
    if made.rule not in catalogue():
        raise UsageError(f"{where}: unknown rule {made.rule!r}")
    if "*" in made.symbol or "?" in made.symbol:
        raise UsageError(f"{where}: symbol {made.symbol!r}: wildcards are not allowed, name one symbol")
    if _DATE.match(made.expires):
        try:
            days = (datetime.date.fromisoformat(made.expires) - today).days
        except ValueError:
            raise UsageError(f"{where}: expires {made.expires!r} is no date") from None
        if days > MAX_DAYS:
            raise UsageError(f"{where}: expires in {days} days, at most {MAX_DAYS} are allowed")
    elif not re.match(r"v?\d+(\.\d+)*", made.expires):
        raise UsageError(f"{where}: expires {made.expires!r}: expected a version or a date YYYY-MM-DD")


def apply(findings: list[Finding], suppressions: list[Suppression], version: str, today: datetime.date) -> list[str]:
    """Mark suppressed findings; return what is stale."""
    stale = []
    for s in suppressions:
        hits = [f for f in findings if s.covers(f)]
        if s.expired(version, today):
            stale.append(f"suppression {s.rule} {s.symbol}: expired ({s.expires}): {s.reason}")
            continue
        if not hits:
            stale.append(f"suppression {s.rule} {s.symbol}: matches no finding, delete it")
        for f in hits:
            f.suppressed = s.reason
            s.used = True
    return stale


def write(path: Path, made: Suppression) -> None:
    """Append an entry.

    Raises:
        UsageError: The file cannot be written.
    """
    lines = [
        "[[suppress]]",
        f"rule = {_quoted(made.rule)}",
        f"symbol = {_quoted(made.symbol)}",
        f"reason = {_quoted(made.reason)}",
        f"expires = {_quoted(made.expires)}",
    ]
    if made.owner:
        lines.append(f"owner = {_quoted(made.owner)}")
    with writing(path):
        old = path.read_text(encoding="utf-8").rstrip() if path.exists() else ""
        path.write_text((old + "\n\n" if old else "") + "\n".join(lines) + "\n", encoding="utf-8")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ") + '"'


def current_date() -> datetime.date:
    """Today, or the day of SOURCE_DATE_EPOCH where a build must not depend on the clock."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdigit():
        return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()
    return datetime.datetime.now(datetime.UTC).date()
