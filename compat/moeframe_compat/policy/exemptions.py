"""What is no API or counts less: only what the old release said of itself, so that no change exempts itself."""

from __future__ import annotations

from moeframe_compat.index.public import UNSTABLE, below
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.policy.settings import Settings
from moeframe_compat.rules.base import SEVERITIES, catalogue
from moeframe_compat.rules.context import Context, Options


def options(before: Snapshot, settings: Settings, off: frozenset[str]) -> Options:
    """What the rules need to know: exemptions of the old release, watch lists of both."""
    old = before.surfaces.project.declared
    severities = {code: _stricter(code, old.severities, settings.severities) for code in catalogue()}
    return Options(
        off,
        {code: level for code, level in severities.items() if level != catalogue()[code].severity},
        (*old.config_classes, *settings.config_classes),
        (*old.constants, *settings.constants),
        UNSTABLE | frozenset(old.markers),
        UNSTABLE | frozenset([*old.markers, *settings.markers]),
        nominal=tuple(old.nominal),
    )


def _stricter(code: str, old: dict[str, str], new: dict[str, str]) -> str:
    """The new settings may raise a severity at once; lowering it counts from the next release on."""
    default = catalogue()[code].severity
    level = old.get(code, default) if old.get(code, default) in SEVERITIES else default
    return min(level, new.get(code, level), key=SEVERITIES.index)


def drop_internal_modules(before: Snapshot, after: Snapshot, settings: Settings) -> None:
    """Take the modules that are no API out of both snapshots."""
    old = before.surfaces.project.declared.modules_off
    fresh = [path for path in after.modules if path not in before.modules and below(path, settings.modules_off)]
    for snapshot in (before, after):
        for path in [path for path in snapshot.modules if below(path, old)]:
            del snapshot.modules[path]
    for path in fresh:
        after.modules.pop(path, None)


def announce(ctx: Context, settings: Settings) -> None:
    """DP010: exemptions that the new settings add to those of the old release."""
    old = ctx.old.snapshot.surfaces.project.declared
    rows = [("modules_off", name) for name in settings.modules_off if any(below(p, [name]) for p in ctx.old.modules)]
    rows += [("markers", name) for name in settings.markers if name not in old.markers]
    rows += [("nominal", name) for name in settings.nominal if not below(name, old.nominal)]
    rows += [
        ("severities", code)
        for code, level in sorted(settings.severities.items())
        if ctx.options.severities.get(code, catalogue()[code].severity) != level
    ]
    for key, name in rows:
        ctx.skipped.add(f"setting {key} for {name}: the old release's settings count (explain DP010)")
        ctx.emit(
            "DP010",
            f"settings:{key}:{name}",
            old="not in the old release's settings",
            new=name,
            at=(ctx.new.snapshot.surfaces.project.file or "pyproject.toml", 1),
            why="what the old release says of itself counts: this one is checked without it",
            fix="nothing, if the next release is soon enough; a baseline file can be written again with these settings",
        )
