from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from moeframe_compat.cli import main
from moeframe_compat.errors import UsageError
from moeframe_compat.policy.ledger import parse_ledger
from moeframe_compat.policy.suppressions import load_suppressions
from moeframe_compat.policy.versions import at_least, bump, needed_bump
from moeframe_compat.testing import compare_sources

TODAY = datetime.date(2026, 1, 10)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("a", "def f(a): return a\n"), ("b", "__version__ = '0.2'\ndef f(b): return b\n")):
        (tmp_path / name / "pkg").mkdir(parents=True)
        (tmp_path / name / "pkg" / "__init__.py").write_text(text)
    (tmp_path / "pyproject.toml").write_text(
        "[tool.moeframe_compat]\npackage = 'pkg'\nbaseline = 'dir:a'\nsuppressions = 'accepted.toml'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(datetime.datetime(2026, 1, 10, tzinfo=datetime.UTC).timestamp())))
    return tmp_path


def suppressing(**entry: str) -> str:
    base = {"rule": "PY102", "symbol": "pkg.f(a)", "reason": "nobody uses it", "expires": "2026-02-01"} | entry
    return "[[suppress]]\n" + "".join(f'{k} = "{v}"\n' for k, v in base.items())


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({}, 0),
        ({"expires": "0.3"}, 0),
        ({"expires": "2026-01-09"}, 1),
        ({"expires": "0.2"}, 1),
        ({"symbol": "pkg.f(b)"}, 1),
        ({"rule": "PY101"}, 1),
        ({"id": "PY102:000000000000"}, 1),
        ({"expires": "2026-12-31"}, 2),
        ({"symbol": "pkg.*"}, 2),
        ({"rule": "PY999"}, 2),
        ({"reason": ""}, 2),
    ],
)
def test_a_suppression_covers_one_finding_until_its_end(project: Path, entry: dict[str, str], code: int) -> None:
    (project / "accepted.toml").write_text(suppressing(**entry))
    assert main(["check", "--new", "dir:b"]) == code


def test_an_unused_or_expired_suppression_is_stale(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for entry in ({}, {"expires": "2026-01-01"}):
        (project / "accepted.toml").write_text(suppressing(**entry))
        assert main(["check", "--new", "dir:a"]) == 4
        assert "stale suppression PY102 pkg.f(a)" in capsys.readouterr().out


def test_a_suppressed_finding_is_still_shown(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "accepted.toml").write_text(suppressing())
    main(["check", "--new", "dir:b"])
    assert "suppressed PY102 pkg.f(a): nobody uses it" in capsys.readouterr().out


def test_suppress_writes_an_entry_that_works(project: Path) -> None:
    assert main(["suppress", "PY102", "pkg.f(a)", "--reason", 'said "yes"', "--expires", "2026-03-01"]) == 0
    assert main(["check", "--new", "dir:b"]) == 0
    (entry,) = load_suppressions(project / "accepted.toml", TODAY)
    assert entry.reason == 'said "yes"'


def test_suppress_says_so_when_it_cannot_write(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "accepted.toml").unlink(missing_ok=True)
    (project / "accepted.toml").mkdir()
    assert main(["suppress", "PY102", "pkg.f(a)", "--reason", "known", "--expires", "2026-03-01"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("moeframe-compat: ")
    assert "accepted.toml cannot be written (Is a directory)" in line


def test_the_settings_of_the_old_release_can_change_a_severity(project: Path) -> None:
    text = (project / "pyproject.toml").read_text().replace("suppressions = 'accepted.toml'\n", "")
    (project / "pyproject.toml").write_text(text + "severities = { PY102 = 'info' }\n")
    assert main(["check", "--new", "dir:b"]) == 1
    (project / "a" / "pyproject.toml").write_text((project / "pyproject.toml").read_text())
    assert main(["check", "--new", "dir:b"]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[rename]]\nsurface = 'python'\nold = 'a'\n", "needs new"),
        ("[[rename]]\nsurface = 'moon'\nold = 'a'\nnew = 'b'\n", "surface"),
        ("[[remove]]\nsurface = 'python'\nold = 'a'\nsince = '0.4'\nremove_in = '0.2'\n", "is before since"),
        ("[[remove]]\nsurface = 'python'\nold = 'a'\ncolour = 'red'\n", "unknown colour"),
        ("[[renames]]\nsurface = 'python'\nold = 'a'\nnew = 'b'\n", "unknown renames; entries are tables [[rename"),
        ("rename = 3\n", "expected [[rename]] tables"),
        ("[[", "ledger changes.toml"),
    ],
)
def test_a_ledger_that_contradicts_itself_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("[", r"\[")):
        parse_ledger(text, "changes.toml")


def test_both_spellings_of_an_entry_mean_the_same() -> None:
    (a,) = parse_ledger("[[rename]]\nsurface = 'config'\nold = 'x.a'\nnew = 'x.b'\nvalue_map = {true = true}\n", "l")
    (b,) = parse_ledger(
        "[[change]]\nkind = 'rename'\nsurface = 'config'\nold = 'x.a'\nnew = 'x.b'\nvalue_map = {true = true}\n", "l"
    )
    assert a == b


def test_a_ledger_entry_that_no_release_knows_is_stale() -> None:
    entry = "[[remove]]\nsurface = 'python'\nold = 'never_there'\nsince = '0.2'\nremove_in = '0.9'\n"
    report = compare_sources("__version__ = '0.1'\n", "__version__ = '0.2'\n", ledger=entry)
    assert report.exit_code == 4
    assert "never_there" in report.stale[0]


def test_a_promised_shim_that_is_missing_is_pointed_out() -> None:
    entry = "[[rename]]\nsurface = 'python'\nold = 'f(a)'\nnew = 'f(b)'\nsince = '0.2'\nremove_in = '0.4'\n"
    report = compare_sources(
        "__version__ = '0.1'\ndef f(a): return a\n", "__version__ = '0.2'\ndef f(b): return b\n", ledger=entry
    )
    (finding,) = report.breaking
    assert finding.notes == ["the ledger promises that the old spelling works until 0.4: it does not"]


def test_versions_compare_by_number_and_a_prerelease_counts_as_its_release() -> None:
    assert at_least("0.10", "0.9")
    assert at_least("0.9.0.dev1", "0.9")
    assert not at_least("0.8.5", "0.9")
    assert not at_least("", "0.1")


@pytest.mark.parametrize(
    ("old", "breaking", "added", "needed"),
    [
        ("0.4", True, False, "minor"),
        ("1.4", True, True, "major"),
        ("1.4", False, True, "minor"),
        ("0.4", False, True, "patch"),
        ("1.4", False, False, "none"),
    ],
)
def test_the_needed_bump_follows_semver(*, old: str, breaking: bool, added: bool, needed: str) -> None:
    assert needed_bump(old, breaking=breaking, added=added) == needed


def test_the_declared_bump_is_the_first_number_that_moves() -> None:
    assert [bump("0.1.0", v) for v in ("0.1.0", "0.1.1", "0.2.0", "1.0.0", "")] == [
        "none",
        "patch",
        "minor",
        "major",
        "",
    ]


DECLARED = "[[rename]]\nsurface = 'python'\nold = 'f(enable)'\nnew = 'f(use)'\nsince = '0.2'\nremove_in = '0.4'\n"
READS_THE_LEDGER = """
import functools, tomllib, warnings
__version__ = "0.2"
def _changes(): return tomllib.loads(open("changes.toml").read())["rename"]
def renamed(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        for change in _changes():
            if change["old"] in kwargs:
                warnings.warn("renamed", DeprecationWarning, stacklevel=2)
                kwargs[change["new"]] = kwargs.pop(change["old"])
        return fn(*args, **kwargs)
    return inner
{decorator}
def f(use=False): return use
"""


def test_a_declared_rename_through_a_decorator_that_reads_the_ledger_is_trusted_but_named_unverified() -> None:
    before = "__version__ = '0.1'\ndef f(enable=False): return enable\n"
    report = compare_sources(before, READS_THE_LEDGER.format(decorator="@renamed"), ledger=DECLARED)
    assert report.breaking == []
    assert "DP004 for pkg.f(enable)" in report.skipped


def test_a_declared_rename_without_its_decorator_breaks() -> None:
    before = "__version__ = '0.1'\ndef f(enable=False): return enable\n"
    report = compare_sources(before, READS_THE_LEDGER.format(decorator=""), ledger=DECLARED)
    assert [f.rule for f in report.breaking] == ["PY102"]


@pytest.mark.parametrize("text", ["suppress = 3\n", "suppress = [3]\n", "[[supress]]\nrule = 'PY102'\n"])
def test_a_file_of_suppressions_of_the_wrong_shape_is_refused(project: Path, text: str) -> None:
    Path("accepted.toml").write_text(text)
    with pytest.raises(UsageError, match=r"accepted.toml: expected \[\[suppress\]\] tables"):
        load_suppressions(Path("accepted.toml"), TODAY)
