from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from moeframe_compat import __version__
from moeframe_compat.cli import main
from moeframe_compat.render import FORMATS
from moeframe_compat.rules.base import catalogue
from moeframe_compat.testing import compare_sources

BEFORE = "def f(a, b=1): return a\n"
AFTER = "def f(a, c=1): return a\n"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`a` and `b` hold two releases of pkg that differ in a parameter's name."""
    for name, text in (("a", BEFORE), ("b", AFTER)):
        (tmp_path / name / "pkg").mkdir(parents=True)
        (tmp_path / name / "pkg" / "__init__.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(*args: str) -> int:
    return main(["check", "--old", "dir:a", "--new", "dir:b", "--package", "pkg", *args])


def git(folder: Path, *args: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *identity, *args], check=True, capture_output=True)


def test_findings_exit_1_and_none_exit_0(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check() == 1
    assert main(["check", "--old", "dir:a", "--new", "dir:a", "--package", "pkg"]) == 0
    assert capsys.readouterr().out.endswith("needed bump: none | declared: unknown\n")


def test_the_text_names_rule_places_reason_and_fix(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check()
    out = capsys.readouterr().out
    assert "error PY102 parameter renamed: pkg.f(b)" in out
    assert "old  pkg/__init__.py:1 @a    new  pkg/__init__.py:1" in out
    assert "1 error, 0 warnings from 1 cause (1 object)" in out


def test_the_same_input_gives_the_same_bytes(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for form in ("text", "json", "github", "markdown"):
        check("--format", form)
        first = capsys.readouterr().out
        check("--format", form)
        assert capsys.readouterr().out == first
        assert str(releases) not in first


def test_json_findings_have_the_fields_of_the_contract(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("--format", "json")
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    wanted = {"rule", "severity", "kind", "audience", "symbol", "old", "new", "file", "line", "why", "fix", "id"}
    assert wanted <= set(finding)
    assert finding["id"].startswith("PY102:")


def test_github_annotations_stand_on_real_lines(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("--format", "github")
    assert capsys.readouterr().out.startswith("::error file=pkg/__init__.py,line=1,title=PY102")


def test_explicit_releases_ignore_the_configuration_of_the_working_directory(releases: Path) -> None:
    (releases / "pyproject.toml").write_text("[tool.moeframe_compat]\nexclude = ['*']\nnonsense = 1\n")
    assert check() == 1


def test_explicit_releases_without_a_package_say_which_settings_would_be_read(
    releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (releases / "pyproject.toml").write_text('[tool.moeframe_compat]\npackage = "pkg"\n')
    releases_only = ["check", "--old", "dir:a", "--new", "dir:b"]
    assert main(releases_only) == 2
    assert "read only from a file that --config names" in capsys.readouterr().err
    assert main([*releases_only, "--config", "pyproject.toml"]) == 1


def test_a_missing_file_of_suppressions_is_told_with_who_makes_it(
    releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = '[tool.moeframe_compat]\npackage = "pkg"\nsuppressions = "accepted.toml"\n'
    (releases / "pyproject.toml").write_text(table)
    assert main(["check", "--old", "dir:a", "--new", "dir:b", "--config", "pyproject.toml"]) == 2
    assert "accepted.toml: no such file, and `suppressions`" in capsys.readouterr().err


def test_without_releases_the_settings_decide(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (releases / "b" / "pyproject.toml").write_text("[tool.moeframe_compat]\npackage = 'pkg'\nbaseline = 'dir:../a'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(releases / "b")
        assert main(["check"]) == 1
        (releases / "b" / "pyproject.toml").write_text("[tool.moeframe_compat]\npackge = 'pkg'\n")
        assert main(["check"]) == 2
    assert "unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "code", "words"),
    [
        ("bogus", 2, "expected one of dir:"),
        ("dir:nowhere", 3, "no such directory"),
        ("git:v9", 3, "no such commit"),
        ("wheel:none.whl", 3, "no such file"),
        ("snapshot:none.json", 3, "No such file"),
    ],
)
def test_a_baseline_that_cannot_be_read_is_never_clean(
    releases: Path, capsys: pytest.CaptureFixture[str], old: str, code: int, words: str
) -> None:
    git(releases, "init", "-q", ".")
    assert main(["check", "--old", old, "--new", "dir:b", "--package", "pkg"]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
    assert not captured.out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"def f(:\n", "pkg/bad.py:1: not valid Python"),
        (b's = "\xff\xfe"\n', "not readable as text"),
        (b"x\x00y\n", "not valid Python"),
        (b"x = " + b"+".join([b"1"] * 20000), "nested too deeply"),
        (b"#" * (8 * 2**20 + 1), "are not read"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_exits_3(
    releases: Path, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    (releases / "b" / "pkg" / "bad.py").write_bytes(content)
    assert check() == 3
    assert words in capsys.readouterr().err


def test_a_broken_project_file_is_named_and_exits_3(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (releases / "a" / "pyproject.toml").write_text("[tool.moeframe_compat\n")
    assert check() == 3
    assert "pyproject.toml: not valid TOML" in capsys.readouterr().err


def test_a_declared_encoding_is_respected(releases: Path) -> None:
    (releases / "b" / "pkg" / "old.py").write_bytes(b'# -*- coding: latin-1 -*-\ns = "\xe9"\n')
    assert check() == 1


def test_a_package_that_is_not_there_exits_3(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--old", "dir:a", "--new", "dir:b", "--package", "other"]) == 3
    assert "it holds pkg" in capsys.readouterr().err


def test_git_and_wheel_read_like_a_directory(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(releases / "a", "init", "-q", ".")
    git(releases / "a", "add", ".")
    git(releases / "a", "commit", "-qm", "one")
    git(releases / "a", "tag", "v1")
    with zipfile.ZipFile(releases / "pkg-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("pkg/__init__.py", BEFORE)
        wheel.writestr("pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n")
    assert main(["check", "--old", "wheel:pkg-1.0-py3-none-any.whl", "--new", "dir:b", "--package", "pkg"]) == 1
    assert "needed bump: major" in capsys.readouterr().out
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(releases / "a")
        assert main(["check", "--old", "git:v1", "--new", "dir:../b", "--package", "pkg"]) == 1


def test_a_snapshot_file_stands_in_for_its_release(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", "dir:a", "--package", "pkg", "--output", "base.json"]) == 0
    first = Path("base.json").read_bytes()
    assert main(["snapshot", "dir:a", "--package", "pkg", "--output", "base.json"]) == 0
    assert Path("base.json").read_bytes() == first
    capsys.readouterr()
    assert main(["check", "--old", "snapshot:base.json", "--new", "dir:b", "--package", "pkg", "--format", "json"]) == 1
    from_file = json.loads(capsys.readouterr().out)
    check("--format", "json")
    direct = json.loads(capsys.readouterr().out)
    assert from_file["findings"] == direct["findings"]


def test_a_snapshot_edited_by_hand_is_refused(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["snapshot", "dir:a", "--package", "pkg", "--output", "base.json"])
    path = Path("base.json")
    path.write_text(path.read_text().replace('"b"', '"c"'))
    assert main(["check", "--old", "snapshot:base.json", "--new", "dir:b", "--package", "pkg"]) == 3
    assert "does not match its sha256" in capsys.readouterr().err


def test_without_sources_shims_are_not_judged(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["snapshot", "dir:b", "--package", "pkg", "--output", "new.json"])
    capsys.readouterr()
    main(["check", "--old", "dir:a", "--new", "snapshot:new.json", "--package", "pkg"])
    assert "skipped DP004" in capsys.readouterr().out


@pytest.mark.parametrize("output", [".", "a/pkg/__init__.py/base.json", "/proc/base.json"])
def test_a_snapshot_that_cannot_be_written_is_wrong_usage(
    releases: Path, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    assert main(["snapshot", "dir:a", "--package", "pkg", "--output", output]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"moeframe-compat: {output} cannot be written (")


def test_explain_prints_code_break_and_fix_of_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    for code in catalogue():
        assert main(["explain", code]) == 0
        out = capsys.readouterr().out
        assert out.startswith(f"{code}  ")
        assert "your code\n    " in out
        assert "the fix\n    " in out
    assert main(["explain", "XX999"]) == 2


def test_a_fresh_process_needs_neither_torch_nor_moeframe(releases: Path) -> None:
    code = (
        "import sys; from moeframe_compat.cli import main\n"
        "main(['check', '--old', 'dir:a', '--new', 'dir:b', '--package', 'pkg'])\n"
        "assert not {'torch', 'moeframe'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.mark.parametrize(("version", "asked"), [("1.2", "my-pkg==1.2"), ("latest", "my-pkg")])
def test_the_index_is_asked_for_a_version_or_for_the_newest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], version: str, asked: str
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no such version")

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["check", "--old", f"pypi:{version}", "--new", "dir:.", "--package", "my_pkg"]) == 3
    assert commands[0][-1] == asked
    assert "no such version" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_report_that_cannot_be_written_is_one_line_and_no_verdict() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "moeframe_compat", "explain", "PY101"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (
        3,
        "moeframe-compat: the report cannot be written: No space left on device\n",
    )


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"moeframe-compat {__version__}\n"


def test_what_is_new_does_not_read_as_a_rename() -> None:
    before = "from typing import Protocol\nclass D(Protocol):\n    def send(self, x): ...\n"
    report = compare_sources(before, before + "    def name(self) -> str: ...\n")
    assert "member added to a Protocol: pkg.D.name (new)   [implementer]" in FORMATS["text"](report)
    assert "is now" not in FORMATS["markdown"](report)
    (found,) = report.breaking
    assert found.why.startswith("D did not ask for name, now it does. Classes written for the old D have none")
    assert found.fix.startswith("leave D as it was")


def test_what_is_said_of_a_method_that_others_implement_is_said_to_them() -> None:
    before = "from typing import Protocol\nclass D(Protocol):\n    def send(self, x, n): ...\n"
    report = compare_sources(before, before.replace("x, n", "tokens"))
    whys = {f.rule: f.why for f in report.breaking}
    assert whys["PA005"] == (
        "send had n, and has it no more: implementations that still demand it are called without it and fail"
    )
    assert whys["PA004"].startswith("what send called x is called tokens now: implementations that say x fail")
