"""Which findings of a version pair hit a plugin, where, and what to write instead."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from moeframe_compat.consumer.usage import Call, Place, Usage, read_usage
from moeframe_compat.extract.cache import cached_snapshots
from moeframe_compat.extract.package import Extraction
from moeframe_compat.extract.trees import LEDGER_FILE, parse_spec
from moeframe_compat.index.lookup import Index
from moeframe_compat.index.signatures import callable_params
from moeframe_compat.model.objects import Class
from moeframe_compat.policy.ledger import Change, open_changes, parse_ledger
from moeframe_compat.policy.settings import Settings
from moeframe_compat.report import Report, compare
from moeframe_compat.rules.base import Finding, catalogue
from moeframe_compat.rules.protocols import has_body

_IMPORTS = ("PY001", "PY002", "PY003", "PY004", "PY005", "PY006", "PY007", "PY010", "DP001")
_PASSES = ("PY101", "PY102", "PY106", "PY108", "PL002", "DP004", "DP005", "PY110", "PY111", "PY305", "PA004", "PA005")
_NEEDS = ("PY104", "PY105", "PY211", "PA003", "PY204")
_OVERRIDES = ("PA001", "PA002", "PA003", "PA004", "PA005", "PA006", "PA009", "PA011", "PY208", "PY209")


@dataclass(slots=True)
class Hit:
    """A line of the plugin that a finding breaks; `rewrite` is what to write, "" if it takes thought."""

    finding: Finding
    place: Place
    rewrite: str = ""


@dataclass(slots=True)
class Hits:
    """All of them."""

    report: Report
    hits: list[Hit] = field(default_factory=list)

    @property
    def breaking(self) -> bool:
        """Is there anything that must be done? What still works for a while need not be done now."""
        return any(h.finding.breaking for h in self.hits)


def check_plugin(path: Path, old: str, new: str, package: str) -> Hits:
    """What moving a plugin from one release of a package to another breaks in it.

    Args:
        path: The plugin: a folder or one file.
        old: SPEC of the release it runs on.
        new: SPEC of the release it moves to.
        package: The package it uses.

    Raises:
        UsageError, ExtractionError: As for `check`.
    """
    before, after = cached_snapshots([(parse_spec(spec), Extraction(package)) for spec in (old, new)])
    ledger = parse_ledger(after.ledger, f"{package}/{LEDGER_FILE}") if after.ledger else []
    promised = {c.label(): ("", "") for c in open_changes(ledger, after.version)}
    report = compare(before, after, Settings(), ledger, [], promised=promised)
    index, fresh = Index(before), Index(after)
    usage = read_usage(path, index)
    out = Hits(report)
    for found in report.findings:
        # Who does not inherit where the package says so has no use of a body.
        f = replace(found, severity="error") if found.rule == "PA001" else found
        places = _places(f, usage, index, fresh) if f.breaking else _deprecated(f, usage, index)
        out.hits += [Hit(f, place, _rewrite(f, ledger, place)) for place in dict.fromkeys(places)]
    out.hits.sort(key=lambda h: (h.place.file, h.place.line, h.finding.rule, h.finding.symbol))
    return out


def _deprecated(f: Finding, usage: Usage, index: Index) -> list[Place]:
    """Where a name is used that goes on working until its announced end."""
    if not f.policy.startswith("declared"):
        return []
    path, name = _split(f.symbol)
    if f.rule[:2] == "CF":
        return _config(f, path, name, usage, index)
    calls = [c for c in usage.calls if c.path in _spellings(path, index)]
    return [c.place for c in calls if name in c.shape.names]


def _split(symbol: str) -> tuple[str, str]:
    """`pkg.C.__init__(b)` to (`pkg.C`, `b`)."""
    path, _, name = symbol.partition("(")
    return path.removesuffix(".__init__"), name.rstrip(")")


def _places(  # noqa: C901, PLR0911, PLR0912 - one branch per family
    f: Finding, usage: Usage, index: Index, fresh: Index
) -> list[Place]:
    path, name = _split(f.symbol)
    family = f.rule[:2]
    if f.rule == "PY010" and any(i == path or i.startswith(f"{path}.") for i in usage.imported):
        return []  # it imports the module itself
    if f.rule in _IMPORTS:
        return [p for n, places in usage.names.items() if n == path or n.startswith(f"{path}.") for p in places]
    if family == "HK":
        return _hooks(f, usage)
    if family == "CL":
        return usage.words.get(f.symbol.rpartition(" ")[2].removeprefix("cli:"), []) + usage.strings.get(
            f.symbol.rpartition(" ")[2].removeprefix("cli:"), []
        )
    if family == "EN":
        return usage.strings.get(f.old, []) + usage.words.get(f.old, [])
    if f.rule == "PL001":
        key = f.symbol.partition(":")[2]
        return usage.strings.get(key, []) + [p for p in usage.words.get(key, []) if p.file.endswith((".yaml", ".yml"))]
    if f.rule in ("PL003", "PL004"):
        key = f.old
        return usage.groups.get(key.strip("'\""), []) + usage.words.get(key, [])
    if family == "CF":
        return _config(f, path, name, usage, index)
    if f.rule in _OVERRIDES:
        found = _overrides(f, path, name, usage, index, fresh)
        if found or f.rule in ("PA001", "PA002", "PA006", "PA009", "PA011", "PY208", "PY209"):
            return found
    calls = [c for c in usage.calls if c.path in _spellings(path, index)]
    if f.rule in _PASSES or f.rule in ("PY103", "PY302"):
        return [c.place for c in calls if _passes(c, path, name, index, by_name=f.rule not in ("PY103", "PY302"))]
    if f.rule in _NEEDS or f.rule == "PY109":
        return [c.place for c in calls if not _passes(c, path, name, index, by_name=True)]
    if f.rule in ("PY201", "PY118", "PY119", "PY117") or (f.rule == "PY301" and not name):
        owner = path.rpartition(".")[0]
        member = path.rpartition(".")[2]
        known = any(o in usage.names or any(o in c.bases for c in usage.classes) for o in _spellings(owner, index))
        keywords = [c.place for c in usage.calls if c.path in _spellings(owner, index) and member in c.shape.names]
        return (usage.attributes.get(member, []) if known else []) + keywords
    if f.rule in ("PY114", "PY115", "PY116", "PY120", "PY112", "PY009", "PA010"):
        return [c.place for c in calls]
    if f.rule in ("PY205", "PY206", "PY207", "PY304"):
        return [c.place for c in usage.classes if set(c.bases) & _spellings(path, index)]
    spelled = _spellings(path, index)
    return [p for n, places in usage.names.items() if n in spelled for p in places]


def _spellings(path: str, index: Index) -> set[str]:
    found = index.find(path)
    return {path, found.path} if found is not None else {path}


def _passes(c: Call, path: str, name: str, index: Index, *, by_name: bool) -> bool:
    if by_name and (name in c.shape.names or (c.shape.open and not name)):
        return True
    target = index.find(path)
    params = callable_params(index, target) if target is not None else None
    if target is not None and params is None and isinstance(target.obj, Class):
        return False
    names = [p.name for p in params or [] if p.positional]
    return name in names and c.shape.npos > names.index(name)


def _hooks(f: Finding, usage: Usage) -> list[Place]:
    if f.rule == "HK005":
        return usage.projects.get(f.old, [])
    path, name = _split(f.symbol)
    hook = path.rpartition(".")[2]
    return [h.place for h in usage.hooks if h.name == hook and (f.rule != "HK002" or name in h.params)]


def _config(f: Finding, path: str, name: str, usage: Usage, index: Index) -> list[Place]:
    key = name or path.rpartition(".")[2]
    owner = path if name else path.rpartition(".")[0]
    calls = [c for c in usage.calls if c.path in _spellings(owner, index)]
    if f.rule in ("CF006", "CF007"):
        return [c.place for c in calls if key not in c.shape.names]
    if f.rule == "CF009":
        return [
            p for w, places in usage.words.items() if w == f.old for p in places if p.file.endswith((".yaml", ".yml"))
        ]
    if f.rule in ("CF011", "CF012", "CF010"):
        return usage.words.get(f.symbol.split(":")[1], [])
    return usage.keys.get(key, []) + [c.place for c in calls if key in c.shape.names]


def _overrides(f: Finding, path: str, name: str, usage: Usage, index: Index, fresh: Index) -> list[Place]:
    owner, method = path.rpartition(".")[0], path.rpartition(".")[2]
    spelled = _spellings(owner, index)
    contract = index.find(owner)
    wanted = (
        {n for n in contract.obj.members if not n.startswith("_")}
        if contract is not None and isinstance(contract.obj, Class)
        else set()
    )
    out = []
    for c in usage.classes:
        structural = bool(wanted) and f.rule.startswith("PA") and wanted <= set(c.methods)
        if not (set(c.bases) & spelled or structural):
            continue
        if f.rule in ("PA001", "PA002"):
            inherits = bool(set(c.bases) & spelled) and has_body(fresh.find(path))
            out += [] if method in c.methods or inherits else [c.place]
        elif method in c.methods:
            params, place = c.methods[method]
            open_ended = any(p.startswith("**") for p in params)
            grown = f.rule in ("PA003", "PY208")
            if (
                f.rule in ("PA006", "PA009", "PY209")
                or (grown and not open_ended and f.new.partition("=")[0] not in params)
                or (not grown and name in params)
            ):
                out.append(place)
    return out


def _rewrite(f: Finding, ledger: list[Change], place: Place) -> str:  # noqa: PLR0911 - one line per kind
    _, name = _split(f.symbol)
    entry = next((c for c in ledger if c.new and c.name == (name or f.symbol.rpartition(".")[2])), None)
    if entry is not None and not f.breaking:
        until = f"; {entry.name} works until {entry.remove_in}" if entry.remove_in else ""
        return f"write {entry.new_name} for {entry.name}{until}"
    rename = re.match(r"rename:(\w+)->(\w+)$", f.cause)
    if rename:
        recipe = f.rule[:2] == "CF" and not place.file.endswith(".py")
        return f"write {rename[2]} for {rename[1]}" + (" in the recipe" if recipe else "")
    if f.rule in ("PY001", "PY002", "PY003") and f.new:
        home, _, name = f.new.rpartition(".")
        return f"import {f.new}" if f.rule == "PY002" else f"from {home} import {name}"
    if f.rule == "HK001" and f.new:
        return f"implement {f.new}"
    if f.rule == "CF003":
        return f"write it as {f.new}"
    if f.rule in ("PY201", "PY308", "PL001") and f.new:
        return f"write {f.new}"
    return ""


def _level(h: Hit) -> str:
    return h.finding.severity if h.finding.breaking else "notice"


def render(hits: Hits, form: str) -> str:
    """The hits as text, json, or GitHub annotations."""
    if form == "json":
        rows = [
            {
                "file": h.place.file,
                "line": h.place.line,
                "rule": h.finding.rule,
                "severity": h.finding.severity,
                "symbol": h.finding.symbol,
                "why": h.finding.why,
                "rewrite": h.rewrite,
                "id": h.finding.id,
            }
            for h in hits.hits
        ]
        return (
            json.dumps({"hits": rows, "changes": len(hits.report.breaking), "skipped": hits.report.skipped}, indent=1)
            + "\n"
        )
    lines = []
    for h in hits.hits:
        why = f"{h.finding.symbol}: {h.finding.why}"
        if form == "github":
            fix = h.rewrite or f"upstream's fix: {h.finding.fix}"
            lines.append(f"::{_level(h)} file={h.place.file},line={h.place.line},title={h.finding.rule}::{why}. {fix}")
        else:
            title = catalogue()[h.finding.rule].title if h.finding.breaking else "an old name"
            why = why if h.finding.breaking else h.finding.symbol
            lines.append(f"{h.place.file}:{h.place.line}: {_level(h)} {h.finding.rule} {title}: {why}")
            lines += [f"    fix: {h.rewrite}"] if h.rewrite else [f"    upstream's fix: {h.finding.fix}"]
    total = len(hits.report.breaking)
    due = [h for h in hits.hits if h.finding.breaking]
    later = len(hits.hits) - len(due)
    lines += [f"skipped {s}" for s in hits.report.skipped] if form == "text" else []
    rest = f", {later} more before old names end" if later else ""
    breaks = f"{total} breaking change{'' if total == 1 else 's'} in all"
    places = f"{len(due)} place{'' if len(due) == 1 else 's'} to change{rest}"
    summary = f"{places}; {hits.report.old} to {hits.report.new} has {breaks}"
    lines.append(f"::notice::{summary}" if form == "github" else summary)
    return "\n".join(lines) + "\n"
