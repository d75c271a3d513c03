"""The rename of 0.2.0 is held to what the ledger promises: the API check runs it, and finds every way to break it."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

import pytest
from moeframe_compat.policy.ledger import load_ledger
from moeframe_compat.policy.settings import load_settings
from moeframe_compat.probe.ledger import Verdict, execute
from moeframe_compat.report import Report, check

ROOT = Path(__file__).parents[2]
OLD, NEW = "enable_deepep", "use_flex_dispatcher"


def entries(root: Path) -> dict[str, Verdict]:
    """Return what running the ledger of a tree shows, by the old name."""
    settings = load_settings(root / "pyproject.toml", required=True)
    changes = load_ledger(root / settings.ledger)
    verdicts = execute(changes, settings)
    assert set(verdicts) == {change.label() for change in changes}, "an entry is never run"
    return {change.old: verdicts[change.label()] for change in changes}


def api_check(root: Path) -> Report:
    """Return the report of the API check on a tree, as `nox -s api_compat` makes it."""
    settings = load_settings(root / "pyproject.toml", required=True)
    settings.root = root
    settings.baseline = f"snapshot:{root / 'compat/baselines/0.1.0.json'}"
    return check(settings.baseline, f"dir:{root}", settings=settings)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a copy of what the check reads."""
    leave = shutil.ignore_patterns("__pycache__", "build", "dist")
    for folder in ("moeframe", "plugins", "recipes", "compat/baselines"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=leave)
    for file in ("pyproject.toml", "compat/accepted.toml", "tests/compat/ledger_trials.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def change(tree: Path, file: str, *replacements: tuple[str, str]) -> None:
    """Change a file of a tree; every text must be there."""
    text = (tree / file).read_text()
    for old, new in replacements:
        assert old in text, f"{file} has no {old!r}"
        text = text.replace(old, new)
    (tree / file).write_text(text)


def test_the_rename_passes_because_it_is_declared_and_works(tree: Path) -> None:
    report = api_check(tree)
    assert [finding.symbol for finding in report.breaking if OLD in finding.symbol] == []
    assert (report.unrun, report.stale) == ([], [])
    assert [skipped for skipped in report.skipped if OLD in skipped] == []
    excused = [finding for finding in report.findings if OLD in finding.symbol]
    assert excused
    assert all(finding.policy == "declared in the ledger, and executed" for finding in excused)


def test_every_entry_is_run_in_both_spellings() -> None:
    assert set(entries(ROOT).values()) == {Verdict("", "the old spelling gives what the new one gives")}


def test_an_undeclared_rename_breaks(tree: Path) -> None:
    (tree / "moeframe" / "changes.toml").write_text("")
    change(tree, "moeframe/config/load.py", ("settings = old_keys.translate_overrides(settings)", "pass"))
    assert any(finding.rule == "CF002" and OLD in finding.symbol for finding in api_check(tree).breaking)


def test_a_shim_without_its_parameter_breaks(tree: Path) -> None:
    change(
        tree,
        "moeframe/train/assemble.py",
        (f"    {OLD}: bool | Absent | None = ABSENT,\n", ""),
        (f'carried_over("moeframe.assemble({OLD})", {OLD}, {NEW}, unset=None)', NEW),
    )
    report = api_check(tree)
    assert report.exit_code == 1
    assert {"PY102", "DP001"} & {finding.rule for finding in report.breaking if OLD in finding.symbol}


KEYS, NAMES = "moeframe/config/old_keys.py", "moeframe/config/old_names.py"
KEY, CALL = f"dispatcher.{OLD}", f"moeframe.assemble({OLD})"
BROKEN = {
    "key removed": (KEYS, 'changes("config") if change.kind != "default"', "()", KEY, "DP001"),
    "key inert": (KEYS, "_insert(document.tree, change.new, mapped)", "pass", KEY, "DP00[45]"),
    "key drops false": (
        KEYS,
        "_insert(document.tree, change.new, mapped)",
        'str(value) == "false" or _insert(document.tree, change.new, mapped)',
        KEY,
        "DP004",
    ),
    "key beside the new one": (KEYS, "if not _equal(mapped, present):", "if False:", KEY, "DP007"),
    "key refused as override": (
        "moeframe/config/load.py",
        "settings = old_keys.translate_overrides(settings)",
        "old_keys.translate_overrides(settings)",
        KEY,
        "DP008",
    ),
    "key beside the new one as override": (
        KEYS,
        "if is_old and new and not _equal(value, new[-1][0]):",
        "if False:",
        KEY,
        "DP007",
    ),
    "key silent": (KEYS, "tell(change, places, advice", "str((change, places, advice)", KEY, "DP006"),
    "parameter inert": (NAMES, "    return value\n", "    return new\n", CALL, "DP00[45]"),
    "parameter drops false": (NAMES, "    return value\n", "    return value or new\n", CALL, "DP004"),
    "parameter beside the new one": (NAMES, "if new is not unset and new != value:", "if False:", CALL, "DP007"),
    "parameter silent": (NAMES, 'tell_caller(change, f"Write', 'dict(change=change, f=f"Write', CALL, "DP006"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_shim_is_named(tree: Path, fault: str) -> None:
    file, text, instead, old, rule = BROKEN[fault]
    change(tree, file, (text, instead))
    settings = load_settings(tree / "pyproject.toml", required=True)
    changes = [entry for entry in load_ledger(tree / settings.ledger) if entry.old == old]
    (verdict,) = execute(changes, settings).values()
    assert re.fullmatch(rule, verdict.rule), verdict


SAVED_NAME = """
[[rename]]
surface = "checkpoint"
old = "blocks.*.gate.weight"
new = "blocks.*.attend.router.weight"
since = "0.2.0"
remove_in = "0.4.0"
reason = "A trial."
"""


def test_a_name_in_checkpoints_is_run_in_both_spellings(tree: Path) -> None:
    (tree / "moeframe" / "changes.toml").write_text(SAVED_NAME)
    settings = load_settings(tree / "pyproject.toml", required=True)
    changes = load_ledger(tree / settings.ledger)
    assert [verdict.rule for verdict in execute(changes, settings).values()] == [""]
    change(tree, "moeframe/checkpoint_names.py", ("found[current], spelled", "found[name], spelled"))
    assert [verdict.rule for verdict in execute(changes, settings).values()] == ["DP004"]


def test_a_broken_shim_fails_the_whole_check(tree: Path) -> None:
    file, text, instead, old, rule = BROKEN["parameter drops false"]
    change(tree, file, (text, instead))
    report = api_check(tree)
    assert report.exit_code == 1
    assert (rule, f"python:{old}") in {(finding.rule, finding.symbol) for finding in report.breaking}


def test_an_entry_that_cannot_be_run_is_not_clean(tree: Path) -> None:
    change(tree, "tests/compat/ledger_trials.py", ('    "moeframe.assemble": _assemble,\n', ""))
    report = api_check(tree)
    assert len(report.unrun) == 1
    assert report.exit_code != 0


def test_the_old_word_stands_only_where_old_names_are_explained() -> None:
    allowed = {
        "CHANGELOG.md",
        "compat/baselines/0.1.0.json",
        "docs/renames.md",
        "moeframe/changes.toml",
        "moeframe/config/schema.py",  # shims
        "moeframe/train/assemble.py",
    }
    looked_at = [ROOT / name for name in ("moeframe", "plugins", "compat", "recipes", "docs")]
    files = [
        path
        for folder in looked_at
        for path in folder.rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".yaml", ".json"}
    ]
    files += [path for path in ROOT.iterdir() if path.suffix in {".py", ".md", ".toml"}]
    found = {
        str(path.relative_to(ROOT)) for path in files if path.is_file() and OLD in path.read_text(encoding="utf-8")
    }
    assert found == allowed


def test_the_baseline_is_the_one_that_the_project_names() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["moeframe_compat"]["baseline"]
    assert named == "snapshot:compat/baselines/0.1.0.json"
