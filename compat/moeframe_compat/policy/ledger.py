"""The ledger of declared changes: what a project says it renamed, moved, removed or changed the default of.

`changes.toml` holds `[[rename]]`, `[[move]]`, `[[remove]]` and `[[default]]` tables (or `[[change]]` tables with a
`kind`), each with `surface`, `old`, `new`, `since`, `remove_in`, `reason` and, for values, `value_map`.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moeframe_compat.errors import UsageError
from moeframe_compat.index.classes import fields
from moeframe_compat.index.environment import environment
from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.model.objects import Class, Function
from moeframe_compat.policy.versions import at_least, release
from moeframe_compat.rules.context import Context

KINDS = ("rename", "move", "remove", "default")
SURFACES = ("python", "config", "recipe", "cli", "checkpoint", "hooks", "plugins", "environment")
_KEYS = {"kind", "surface", "old", "new", "since", "remove_in", "reason", "value_map", "shim"}
_REMOVALS = {
    "PY001",
    "PY003",
    "PY101",
    "PY102",
    "PY201",
    "PY301",
    "CF001",
    "CF002",
    "CF003",
    "CL001",
    "CL007",
    "PL001",
    "CK001",
    "HK001",
    "HK002",
    "PA004",
    "PA005",
    "PY108",
    "PL002",
    "DP008",
    "EN001",
}
_SENTINELS = {"PY109"}
"""What a working shim changes: its old parameter defaults to a mark that says "not given"."""
_DEFAULTS = {"CF007", "PY109", "CL006", "PY122", "CF012"}


@dataclass(slots=True)
class Change:
    """One declared change."""

    kind: str
    surface: str
    old: str
    new: str = ""
    since: str = ""
    remove_in: str = ""
    reason: str = ""
    value_map: dict[str, Any] = field(default_factory=dict)
    shim: str = ""

    @property
    def name(self) -> str:
        """The last name of what changed: `f(old_name)` and `group.old_name` both give old_name."""
        return _tail(self.old)

    @property
    def new_name(self) -> str:
        """The last name of what it became."""
        return _tail(self.new)

    def label(self) -> str:
        """How messages call it."""
        arrow = f" -> {self.new}" if self.new else ""
        return f"{self.kind} {self.surface} {self.old}{arrow}"


def _tail(text: str) -> str:
    inner = re.search(r"\(([\w*]+)", text)
    return inner[1] if inner else re.split(r"[.: ]", text.strip())[-1].lstrip("-").replace("-", "_")


def load_ledger(path: Path) -> list[Change]:
    """Read a ledger.

    Raises:
        UsageError: It cannot be read, or an entry is incomplete or contradicts itself.
    """
    try:
        return parse_ledger(path.read_text(encoding="utf-8"), path.name)
    except FileNotFoundError:
        raise UsageError(f"ledger {path.name}: no such file") from None
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"ledger {path.name}: {e}") from e


def parse_ledger(text: str, name: str) -> list[Change]:
    """The entries of a ledger's text; see `load_ledger`."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"ledger {name}: {e}") from e
    unknown = sorted(set(data) - {*KINDS, "change"})
    if unknown:
        tables = ", ".join(f"[[{kind}]]" for kind in KINDS)
        raise UsageError(f"ledger {name}: unknown {unknown[0]}; entries are tables {tables}")
    rows = [{"kind": kind} | row for kind in KINDS for row in _tables(data, kind, name)]
    rows += _tables(data, "change", name)
    return [_entry(row, f"ledger {name}: entry {i}") for i, row in enumerate(rows, 1)]


def _tables(data: dict[str, Any], key: str, name: str) -> list[dict[str, Any]]:
    rows = data.get(key, [])
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise UsageError(f"ledger {name}: {key}: expected [[{key}]] tables")
    return rows


def _entry(row: dict[str, Any], where: str) -> Change:
    unknown = sorted(set(row) - _KEYS)
    if unknown:
        raise UsageError(f"{where}: unknown {', '.join(unknown)}")
    if row.get("kind") not in KINDS or row.get("surface") not in SURFACES or not row.get("old"):
        raise UsageError(f"{where}: needs kind ({', '.join(KINDS)}), surface ({', '.join(SURFACES)}) and old")
    if row["kind"] in ("rename", "move") and not row.get("new"):
        raise UsageError(f"{where}: a {row['kind']} needs new")
    values: dict[str, Any] = {k: v if k == "value_map" else str(v) for k, v in row.items()}
    made = Change(**values)
    if made.since and made.remove_in and not at_least(made.remove_in, made.since):
        raise UsageError(f"{where}: remove_in {made.remove_in} is before since {made.since}")
    return made


def open_changes(changes: list[Change], version: str) -> list[Change]:
    """Entries whose old spelling must still work in this version."""
    return [c for c in changes if not (c.remove_in and release(version) and at_least(version, c.remove_in))]


def apply_ledger(ctx: Context, changes: list[Change], verdicts: dict[str, tuple[str, str]] | None = None) -> list[str]:
    """Judge findings by the ledger, and the ledger by both releases. Returns stale entries.

    A declared removal whose time has come is no break. One whose time has not come is, unless the old spelling works;
    then no finding is there to excuse. A declared default is no surprise. `verdicts` tells, by the label of an entry,
    what running it showed: the rule it breaks ("" if it works, "unknown" if nobody can tell), and why.
    """
    stale: list[str] = []
    for c in changes:
        due = bool(c.remove_in) and bool(release(ctx.new_version)) and at_least(ctx.new_version, c.remove_in)
        hits = [f for f in ctx.findings if _about(c, f.symbol) and f.breaking]
        for f in hits:
            if c.kind == "default" and f.rule in _DEFAULTS:
                f.severity, f.policy = "info", f"declared in the ledger: {c.reason or c.label()}"
            elif (
                c.kind != "default" and f.rule in _SENTINELS and (verdicts or {}).get(c.label(), ("unknown",))[0] == ""
            ):
                f.severity, f.policy = "info", "declared in the ledger, and executed"
            elif c.kind != "default" and f.rule in _REMOVALS:
                if due:
                    f.severity, f.policy = "info", f"declared for {c.remove_in}"
                elif (verdicts or {}).get(c.label(), ("unknown", ""))[0] != "unknown":
                    f.severity, f.policy = "info", "declared in the ledger, and executed"
                else:
                    until = f" until {c.remove_in}" if c.remove_in else ""
                    f.notes.append(f"the ledger promises that the old spelling works{until}: it does not")
        verdict = (verdicts or {}).get(c.label())
        seen = c.surface == "checkpoint" and verdict is not None and verdict[0] != "unknown"
        if not seen:  # names of saved state may be made at run time: what ran is known
            _consistent(ctx, c, due=due)
        _executed(ctx, c, verdict)
        if not hits and not seen and _unknown(ctx, c):
            stale.append(f"ledger entry {c.label()}: neither release knows the name, delete it")
    return stale


def _about(c: Change, symbol: str) -> bool:
    """Does a finding's symbol end in the changed name, and does the owner agree where one is named?"""
    if symbol.startswith("environment:") != (c.surface == "environment"):
        return False
    if _tail(symbol) != c.name:
        return False
    owner = re.split(r"[.(: ]", c.old)
    if c.surface == "python" and len(owner) > 2:
        wanted = c.old.partition("(")[0] if "(" in c.old else c.old
        plain = symbol.partition("(")[0].removesuffix(".__init__") if "(" in c.old else symbol
        return plain.endswith(wanted.rpartition(".")[2]) or wanted.endswith(plain.rpartition(".")[2])
    return True


def _executed(ctx: Context, c: Change, verdict: tuple[str, str] | None) -> None:
    """Report an entry whose old spelling, when run, does not do what the new one does."""
    if verdict is None or not verdict[0]:
        return
    rule, why = verdict
    if rule == "unknown":
        ctx.skipped.add(f"DP004-DP008 for {c.label()}: {why}")
        return
    ctx.emit(
        rule,
        f"{c.surface}:{c.old}",
        old=c.old,
        new=c.new,
        at=ctx.survivor(ctx.new.package),
        why=why,
        severity="error",
        audience=("caller",) if c.surface == "python" else ("recipe",),
        fix="carry every given value over, warn once naming both spellings, refuse both together",
    )


def _consistent(ctx: Context, c: Change, *, due: bool) -> None:
    place = ctx.survivor(ctx.new.package)
    if c.kind in ("rename", "move") and not due and not knows(ctx.new, c.surface, c.new):
        ctx.emit(
            "DP009",
            f"{c.surface}:{c.new}",
            old=c.old,
            new=c.new,
            at=place,
            why="the ledger sends users to a name that does not exist",
            fix="correct `new` in the ledger, or add what it names",
        )
    refused = c.surface == "environment"  # by reading it
    if c.kind in ("rename", "remove", "move") and due and not refused and knows(ctx.new, c.surface, c.old):
        if c.surface in ("config", "recipe") and knows(ctx.old, c.surface, c.old) is False:
            ctx.emit(
                "CF015",
                f"{c.surface}:{c.old}",
                old=c.old,
                new=c.old,
                at=place,
                why="old recipes that still set it silently get its new meaning",
                fix="give the new key another name: removed names stay reserved",
            )
        else:
            ctx.emit(
                "DP002",
                f"{c.surface}:{c.old}",
                old=f"removal in {c.remove_in}",
                new=f"still there in {ctx.new_version}",
                at=place,
                why="the ledger announced its removal for a version that is reached",
                fix="remove it, or move remove_in",
                severity="error",
            )


def _unknown(ctx: Context, c: Change) -> bool:
    names = [c.old, *([c.new] if c.new else [])]
    return not any(knows(i, c.surface, n) for i in (ctx.old, ctx.new) for n in names)


def knows(index: Index, surface: str, name: str) -> bool:
    """Does a release have something of this name on this surface?"""
    tail = _tail(name)
    if surface in ("config", "recipe"):
        return any(
            f.name == tail
            for p, m in index.modules.items()
            for n, cls in m.members.items()
            if isinstance(cls, Class)
            for f in fields(index, Found(f"{p}.{n}", p, cls))
        )
    if surface == "environment":
        sources = index.snapshot.sources
        return environment(index).may_read(name) or (sources is not None and sources.contain(name))
    s = index.snapshot.surfaces
    if surface == "cli":
        options = [*s.options, *(o for b in s.bundles for o in b.options)]
        return any(tail in [x.lstrip("-").replace("-", "_") for x in o.flags] for o in options) or any(
            c.name.rpartition(" ")[2].replace("-", "_") == tail for c in s.commands
        )
    if surface == "plugins":
        return any(r.name == tail for r in s.registrations) or any(tail in g for g in s.project.entry_points.values())
    owner = name.partition("(")[0]
    places = [index.find(owner), index.find(f"{index.package}.{owner}")]
    found = next((p for p in places if p is not None and not p.external), None)
    if "(" not in name:
        return found is not None or _anywhere(index, tail)
    return found is not None and tail in _params(index, found)


def _params(index: Index, found: Found) -> set[str]:
    if isinstance(found.obj, Class):
        made = index.member(found, "__init__")
        return _params(index, made) if made is not None else {f.name for f in fields(index, found)}
    return {p.name for p in found.obj.params} | set(found.obj.body.reads) if isinstance(found.obj, Function) else set()


def _anywhere(index: Index, name: str) -> bool:
    return any(
        name in m.members
        or any(isinstance(c, Class) and (name in c.members or name in c.state) for c in m.members.values())
        for m in index.modules.values()
    )
