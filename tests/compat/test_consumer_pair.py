"""The third-party plugin of `tests/data/` meets a release of moeframe that breaks it, and one that does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from moeframe_compat.cli import main
from moeframe_compat.pytest_plugin import fail_if_broken

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "tests" / "data" / "thirdparty_dispatcher"
PUBLIC = ("__init__.py", "errors.py", "trace.py", "hooks", "protocols", "schedule")


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with this release in `old` and in `new`, as far as a plugin may import it."""
    for release in ("old", "new"):
        for name in PUBLIC:
            source, target = ROOT / "moeframe" / name, tmp_path / release / "moeframe" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def change(pair: Path, file: str, old: str, new: str) -> None:
    path = pair / "new" / "moeframe" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def upgrade(*options: str) -> int:
    return main(["plugin", str(PLUGIN), "--from", "dir:old", "--to", "dir:new", "--package", "moeframe", *options])


def test_a_release_that_only_adds_leaves_the_plugin_alone(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(
        pair, "errors.py", "class MoeframeError(", "class AnotherError(Exception):\n    pass\n\n\nclass MoeframeError("
    )
    change(
        pair,
        "protocols/dispatcher.py",
        "    def release(self)",
        "    def fresh(self) -> int:\n        return 1\n\n    def release(self)",
    )
    assert upgrade() == 0
    fail_if_broken(str(PLUGIN), package="moeframe", old="dir:old", new="dir:new")


def test_a_break_of_what_the_plugin_does_not_use_leaves_it_alone(pair: Path) -> None:
    change(pair, "protocols/data.py", "class TokenizeRequest", "class TokenizerRequest")
    assert upgrade() == 0


@pytest.mark.parametrize(
    ("file", "name", "instead", "where"),
    [
        ("protocols/dispatcher.py", "layout(", "routes(", "ring.py"),
        ("protocols/dispatcher.py", "keeps_expert_input: ", "keeps_input: ", "plugin.py"),
        ("hooks/hookspecs.py", "moeframe_offer_dispatchers(", "moeframe_dispatchers(", "plugin.py"),
        ("errors.py", "ContractError(", "BrokenContractError(", "ring.py"),
    ],
)
def test_a_release_that_breaks_the_plugin_names_its_lines(
    pair: Path, capsys: pytest.CaptureFixture[str], file: str, name: str, instead: str, where: str
) -> None:
    change(pair, file, name, instead)
    assert upgrade() == 1
    out = capsys.readouterr().out
    assert f"moeframe_ring/{where}:" in out
    assert name.strip("(: ") in out
    with pytest.raises(pytest.fail.Exception, match=where):
        fail_if_broken(str(PLUGIN), package="moeframe", old="dir:old", new="dir:new")


def test_annotations_for_github_name_lines_of_the_plugin(pair: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(pair, "errors.py", "class ContractError(", "class BrokenContractError(")
    assert upgrade("--format", "github") == 1
    assert "::error file=moeframe_ring/ring.py,line=" in capsys.readouterr().out


def test_a_member_without_a_body_breaks_subclasses_of_the_protocol_too(
    pair: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    member = "    def fresh(self) -> int: ...\n\n    def release(self)"
    change(pair, "protocols/dispatcher.py", "    def release(self)", member)
    assert upgrade() == 1
    assert "moeframe_ring/ring.py:45: error PA001" in capsys.readouterr().out
