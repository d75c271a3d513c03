"""The command line: check, explain, snapshot, suppress, plugin."""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from moeframe_compat import __version__
from moeframe_compat.errors import CLEAN, EXTRACTION, CompatError, ExtractionError, UsageError

_FORMATS = ("text", "json", "github", "markdown")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code.

    0 clean, 1 findings, 2 wrong usage, 3 a release could not be read, 4 stale suppression or ledger entry.
    """
    args = _parser().parse_args(argv)
    collecting = gc.isenabled()
    gc.disable()  # one pass over many small objects that all stay
    try:
        return int(args.run(args))
    except CompatError as e:
        sys.stderr.write(f"moeframe-compat: {e}\n")
        return e.exit_code
    except (MemoryError, RecursionError) as e:
        sys.stderr.write(f"moeframe-compat: the check could not be made: {type(e).__name__}\n")
        return EXTRACTION
    finally:
        if collecting:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="moeframe-compat", description="Tells what a release breaks, for whom, and how to fix it."
    )
    parser.add_argument("--version", action="version", version=f"moeframe-compat {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    spec = "dir:PATH, git:REF, wheel:FILE, pypi:VERSION (or pypi:latest) or snapshot:FILE"

    check = commands.add_parser("check", help="compare two releases")
    check.add_argument("--old", metavar="SPEC", help=f"baseline: {spec}")
    check.add_argument("--new", metavar="SPEC", help=f"release to check: {spec}; dir:. by default")
    check.add_argument("--package", default="", metavar="NAME", help="import package")
    check.add_argument(
        "--config", type=Path, metavar="FILE", help="settings instead of [tool.moeframe_compat] in ./pyproject.toml"
    )
    check.add_argument("--format", choices=_FORMATS, default="text")
    check.add_argument(
        "--no-probe", action="store_true", help="never import the package; the report says what stays unchecked"
    )
    check.add_argument("--ledger", type=Path, metavar="FILE", help="changes.toml of the new release")
    check.add_argument("--off", default="", metavar="CODES", help="rules to leave out, with commas")
    check.set_defaults(run=_check)

    explain = commands.add_parser("explain", help="what a rule means, with an example")
    explain.add_argument("code", nargs="?", metavar="CODE", help="such as PY102; without it, the list of rules")
    explain.set_defaults(run=_explain)

    snapshot = commands.add_parser("snapshot", help="write a baseline file")
    snapshot.add_argument("spec", metavar="SPEC", help=spec)
    snapshot.add_argument("--package", default="", metavar="NAME")
    snapshot.add_argument("--output", type=Path, required=True, metavar="FILE")
    snapshot.add_argument("--config", type=Path, metavar="FILE")
    snapshot.add_argument("--no-probe", action="store_true")
    snapshot.set_defaults(run=_snapshot)

    suppress = commands.add_parser("suppress", help="accept one finding for a limited time")
    suppress.add_argument("rule", metavar="RULE")
    suppress.add_argument("symbol", metavar="SYMBOL")
    suppress.add_argument("--reason", required=True)
    suppress.add_argument(
        "--expires", required=True, metavar="WHEN", help="a version, or a date at most 180 days ahead"
    )
    suppress.add_argument("--owner", default="")
    suppress.add_argument("--config", type=Path, metavar="FILE")
    suppress.set_defaults(run=_suppress)

    plugin = commands.add_parser("plugin", help="what a new release of a package breaks in your code")
    plugin.add_argument("path", type=Path, metavar="PATH", help="your package or folder")
    plugin.add_argument("--from", dest="old", required=True, metavar="SPEC", help="the release you run on")
    plugin.add_argument("--to", dest="new", required=True, metavar="SPEC", help="the release you move to")
    plugin.add_argument("--package", required=True, metavar="NAME", help="the package you use")
    plugin.add_argument("--format", choices=("text", "json", "github"), default="text")
    plugin.set_defaults(run=_plugin)
    return parser


def _settings(args: argparse.Namespace, *, explicit: bool):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from moeframe_compat.policy.settings import Settings, load_settings

    if args.config is not None:
        return load_settings(args.config, required=True)
    if explicit:
        return Settings()  # two named releases: the working directory has no say
    return load_settings(Path("pyproject.toml"), required=False)


def _say(text: str) -> None:
    """Write to standard output.

    Raises:
        ExtractionError: It cannot be written, so nobody may take silence for a clean report.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as e:
        raise ExtractionError(f"the report cannot be written: {e.strerror}") from e


def _check(args: argparse.Namespace) -> int:
    from moeframe_compat.render import FORMATS
    from moeframe_compat.report import check
    from moeframe_compat.rules.base import catalogue

    explicit = bool(args.old and args.new)
    settings = _settings(args, explicit=explicit)
    if explicit and not (args.package or settings.package):
        raise UsageError(
            "which package? give --package: with --old and --new both, "
            "settings are read only from a file that --config names"
        )
    old, new = args.old or settings.baseline, args.new or "dir:."
    if not old:
        raise UsageError("no baseline: give --old SPEC, or baseline in [tool.moeframe_compat]")
    if args.ledger is not None:
        settings.ledger = str(args.ledger.resolve())
    settings.probe = settings.probe and not args.no_probe
    off = frozenset(c for c in args.off.split(",") if c)
    unknown = sorted(off - set(catalogue()))
    if unknown:
        raise UsageError(f"--off: unknown rule {unknown[0]!r}; `explain` lists them")
    report = check(old, new, package=args.package, settings=settings, off=off)
    _say(FORMATS[args.format](report))
    return report.exit_code


def _explain(args: argparse.Namespace) -> int:
    from moeframe_compat.render.explain import explain, listing

    _say(explain(args.code) if args.code else listing())
    return CLEAN


def _snapshot(args: argparse.Namespace) -> int:
    from moeframe_compat.report import write_snapshot

    settings = _settings(args, explicit=False)
    settings.probe = settings.probe and not args.no_probe
    package = args.package or settings.package
    if not package:
        raise UsageError("which package? give --package, or package in [tool.moeframe_compat]")
    made = write_snapshot(args.spec, package, args.output, settings)
    _say(f"{args.output}: {made.package} {made.version or made.label}, {len(made.modules)} modules\n")
    return CLEAN


def _suppress(args: argparse.Namespace) -> int:
    from moeframe_compat.policy.suppressions import Suppression, check, current_date, write

    settings = _settings(args, explicit=False)
    if not settings.suppressions:
        raise UsageError('no file for suppressions: set `suppressions = "accepted.toml"` in [tool.moeframe_compat]')
    made = Suppression(args.rule, args.symbol, args.reason, args.expires, args.owner)
    check(made, "suppress", current_date())
    write(settings.root / settings.suppressions, made)
    _say(f"{settings.suppressions}: {made.rule} {made.symbol} until {made.expires}\n")
    return CLEAN


def _plugin(args: argparse.Namespace) -> int:
    from moeframe_compat.consumer.report import check_plugin, render

    hits = check_plugin(args.path, args.old, args.new, args.package)
    _say(render(hits, args.format))
    return 1 if hits.breaking else CLEAN
