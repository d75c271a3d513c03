"""From two SPECs to a report."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from moeframe_compat.errors import CLEAN, EXTRACTION, FINDINGS, STALE, UsageError, writing
from moeframe_compat.extract.cache import cached_snapshots
from moeframe_compat.extract.package import Extraction
from moeframe_compat.extract.trees import parse_spec
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.policy.exemptions import announce, drop_internal_modules
from moeframe_compat.policy.exemptions import options as exemptions
from moeframe_compat.policy.ledger import Change, apply_ledger, load_ledger, open_changes
from moeframe_compat.policy.settings import RUNNERS, Settings
from moeframe_compat.policy.suppressions import Suppression, apply, current_date, load_suppressions
from moeframe_compat.policy.versions import bump, needed_bump
from moeframe_compat.probe.complete import complete
from moeframe_compat.probe.ledger import Execution, ways
from moeframe_compat.rules.base import Finding
from moeframe_compat.rules.causes import causes
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.documents import check_documents
from moeframe_compat.rules.engine import run_rules
from moeframe_compat.rules.exports import additions


@dataclass(slots=True)
class Report:
    """The outcome of a check.

    Attributes:
        findings: All of them, info and suppressed ones too.
        stale: Suppressions and ledger entries that match nothing or are over.
        skipped: Rules that could not run, and why.
        added: New public objects.
        objects: How many public objects the old release has.
        unrun: Ledger entries that were to be executed and could not be; `skipped` says why.
    """

    package: str
    old: str
    new: str
    old_version: str
    new_version: str
    findings: list[Finding]
    stale: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    objects: int = 0
    unrun: list[str] = field(default_factory=list)

    @property
    def breaking(self) -> list[Finding]:
        """Errors and warnings that are not suppressed."""
        return [f for f in self.findings if f.breaking and not f.suppressed]

    @property
    def causes(self) -> dict[str, list[Finding]]:
        """Breaking findings by cause."""
        return causes(self.breaking)

    @property
    def needed(self) -> str:
        """The smallest version bump that semver allows."""
        return needed_bump(self.old_version, breaking=bool(self.breaking), added=bool(self.added))

    @property
    def declared(self) -> str:
        """The bump between the two versions, "" if unknown."""
        return bump(self.old_version, self.new_version)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 3 the ledger could not be executed, 4 stale."""
        if self.breaking:
            return FINDINGS
        if self.unrun:
            return EXTRACTION
        return STALE if self.stale else CLEAN


def check(
    old: str, new: str, *, package: str = "", settings: Settings | None = None, off: frozenset[str] = frozenset()
) -> Report:
    """Compare two releases.

    Args:
        old: SPEC of the baseline.
        new: SPEC of the release to check.
        package: Import package; the settings' one if empty.
        settings: What the project says; nothing by default.
        off: Rules to leave out.

    Raises:
        UsageError: What is asked for makes no sense.
        ExtractionError: A release cannot be read.
    """
    settings = settings or Settings()
    package = package or settings.package
    if not package:
        raise UsageError("which package? give --package, or package in [tool.moeframe_compat]")
    how = _extraction(package, settings)
    past = replace(how, exclude=(), own_settings=True)
    ledger = load_ledger(settings.root / settings.ledger) if settings.ledger else []
    today = current_date()
    suppressions = load_suppressions(settings.root / settings.suppressions, today) if settings.suppressions else []
    with _execution(ledger, settings) as running:
        before, after = cached_snapshots([(parse_spec(old), past), (parse_spec(new), how)])
        return compare(before, after, settings, ledger, suppressions, off, running)


def _extraction(package: str, settings: Settings) -> Extraction:
    return Extraction(
        package,
        settings.distribution,
        settings.root,
        tuple(settings.recipes),
        tuple(settings.exclude),
        tuple(settings.companions),
    )


def compare(
    before: Snapshot,
    after: Snapshot,
    settings: Settings,
    ledger: list[Change],
    suppressions: list[Suppression],
    off: frozenset[str] = frozenset(),
    running: Execution | None = None,
    *,
    promised: dict[str, tuple[str, str]] | None = None,
) -> Report:
    """Compare two snapshots; see `check`. `running` executes the ledger already; `promised` takes its word instead."""
    drop_internal_modules(before, after, settings)
    unknown = sorted({u for s in (before, after) for u in complete(s, allowed=settings.probe)})
    options = exemptions(before, settings, off)
    options.declared = frozenset(c.name for c in ledger if c.surface == "python" and c.kind != "default")
    ctx = Context(before, after, options)
    ctx.skipped |= set(unknown)
    run_rules(ctx)
    announce(ctx, settings)
    check_documents(ctx, ledger)
    if promised is not None:
        verdicts = promised
    else:
        with running or _execution(ledger, settings) as execution:
            verdicts = _verdicts(ctx, ledger, settings, execution)
    stale = apply_ledger(ctx, ledger, verdicts)
    stale += apply(ctx.findings, suppressions, after.version, current_date())
    order = {"error": 0, "warning": 1, "info": 2}
    ctx.findings.sort(key=lambda f: (order[f.severity], f.rule, f.symbol, f.file, f.line))
    return Report(
        before.package,
        before.label,
        after.label,
        before.version,
        after.version,
        ctx.findings,
        stale,
        sorted(ctx.skipped),
        additions(ctx),
        len(ctx.old_surface),
        sorted(label for label, (rule, _) in verdicts.items() if rule == "unknown"),
    )


def _execution(ledger: list[Change], settings: Settings) -> Execution:
    """Start to execute the declared renames, where the settings say how."""
    return Execution(ledger if settings.probe else [], settings)


def _verdicts(ctx: Context, ledger: list[Change], settings: Settings, running: Execution) -> dict[str, tuple[str, str]]:
    """What became of the entries whose window is open."""
    if ledger and not settings.probe:
        ctx.skipped.add("DP004-DP008 for the ledger's entries: the probe is off")
    found = {label: (v.rule, v.why) for label, v in running.verdicts().items()}
    if settings.probe:
        found |= {c.label(): ("unknown", why) for c in ledger if (why := _cannot_run(c, settings))}
    still_open = {c.label() for c in open_changes(ledger, ctx.new_version)}
    return {label: verdict for label, verdict in found.items() if label in still_open}


def _cannot_run(change: Change, settings: Settings) -> str:
    """Why an entry is not executed although the project has others executed; "" if it is, or cannot be by nature."""
    key = {"config": "loader", "recipe": "loader", "python": "caller", "checkpoint": "restorer", "cli": "runner"}
    needed = key.get(change.surface, "")
    if change.kind not in ("rename", "move") or not needed or ways(change, settings):
        return ""
    if change.surface == "python" and "(" not in change.old:
        return ""  # a name: the rules look at it
    if not any(getattr(settings, name) for name in RUNNERS):
        return ""
    return f"no `{needed}` in the settings runs it"


def write_snapshot(spec: str, package: str, target: Path, settings: Settings) -> Snapshot:
    """Write the snapshot file of a release.

    It records what is no API: what the release says of itself, or else what the settings of today say.

    Raises:
        UsageError: The file cannot be written.
        ExtractionError: The release cannot be read.
    """
    how = _extraction(package, settings)
    how.own_settings = True
    (snapshot,) = cached_snapshots([(parse_spec(spec), how)])
    if not snapshot.surfaces.project.declared.stated:
        snapshot.surfaces.project.declared = settings.declared()
    complete(snapshot, allowed=settings.probe)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(snapshot.dump(), encoding="utf-8")
    return snapshot
