from __future__ import annotations

import stat
import sys
import warnings
from pathlib import Path

import pytest

from moeframe.cli import main
from moeframe.config import migrate
from moeframe.config.ledger import Change, forget_what_was_told
from moeframe.errors import MoeframeDeprecationWarning

ROOT = Path(__file__).parents[3]
OLD, NEW = "dispatcher.enable_deepep", "dispatcher.use_flex_dispatcher"

RECIPE = b"""\
# Launch: moeframe run r.yaml dispatcher.enable_deepep=true   (comments are nobody's but yours)
name:   x          # odd   spacing
dispatcher:   &d
    options: {}
    "enable_deepep" :   false    # enable_deepep is off
train: {compile: "${dispatcher.enable_deepep}", steps: 1e2}

sharding: { name: 'fsdp2' }   # no newline at the end"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def moeframe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Return a function that runs a command: (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["moeframe", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        code = caught.value.code
        assert code is None or isinstance(code, int)
        streams = capsys.readouterr()
        return code or 0, streams.out, streams.err

    return run


def declare(monkeypatch: pytest.MonkeyPatch, *entries: dict[str, object]) -> None:
    common = {"kind": "rename", "surface": "config", "since": "0.1.0", "remove_in": "9.0.0", "reason": "Gone."}
    made = tuple(Change(**{**common, **entry}) for entry in entries)
    monkeypatch.setattr(migrate, "changes", lambda _: made)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
def test_only_the_key_and_its_references_change(moeframe, prefix: bytes, ends: bytes) -> None:
    before = prefix + RECIPE.replace(b"\n", ends)
    Path("r.yaml").write_bytes(before)
    code, out, err = moeframe("migrate", "r.yaml")
    assert (code, err) == (0, "")
    assert [line.split(": ", 1)[1] for line in out.splitlines()] == [
        f"{OLD} -> {NEW}",
        f"train.compile: ${{{OLD}}} -> ${{{NEW}}}",
    ]
    after = Path("r.yaml").read_bytes()
    expected = before.replace(b'"enable_deepep"', b'"use_flex_dispatcher"')
    assert after == expected.replace(b"${dispatcher.enable_deepep}", b"${dispatcher.use_flex_dispatcher}")
    assert moeframe("migrate", "r.yaml") == (0, "r.yaml: no old keys\n", "")
    assert Path("r.yaml").read_bytes() == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dispatcher: {name: x, enable_deepep: true}\n", "dispatcher: {name: x, use_flex_dispatcher: true}\n"),
        ("{dispatcher: {enable_deepep: ~,\n  name: x}}\n", "{dispatcher: {use_flex_dispatcher: ~,\n  name: x}}\n"),
        ("dispatcher:\n  'enable_deepep': ~\n", "dispatcher:\n  'use_flex_dispatcher': ~\n"),
        ("dispatcher:\n  ? enable_deepep\n  : true\n", "dispatcher:\n  ? use_flex_dispatcher\n  : true\n"),
        ("dispatcher:\n  &k enable_deepep: &v no\n", "dispatcher:\n  &k use_flex_dispatcher: &v no\n"),
        ("dispatcher: {enable_deepep: true}\ntrain: {enable_deepep: 1}\n",
         "dispatcher: {use_flex_dispatcher: true}\ntrain: {enable_deepep: 1}\n"),
        ("name: enable_deepep\nenable_deepep: 1\n", "name: enable_deepep\nenable_deepep: 1\n"),
        ("dispatcher.enable_deepep: true\n", "dispatcher.enable_deepep: true\n"),
    ],
)  # fmt: skip
def test_block_and_flow_style_and_what_only_looks_alike(moeframe, before: str, after: str) -> None:
    Path("r.yaml").write_text(before)
    assert moeframe("migrate", "r.yaml")[0] == 0
    assert Path("r.yaml").read_text() == after


def test_check_and_diff_write_nothing(moeframe) -> None:
    text = "dispatcher:\n  enable_deepep: false  # why\n"
    Path("r.yaml").write_text(text)
    assert moeframe("migrate", "r.yaml", "--check") == (1, f"r.yaml:2:3: {OLD} -> {NEW}\n", "")
    code, out, err = moeframe("migrate", "r.yaml", "--diff")
    assert (code, err) == (0, "")
    assert out.splitlines()[-3:] == [
        " dispatcher:",
        "-  enable_deepep: false  # why",
        "+  use_flex_dispatcher: false  # why",
    ]
    assert moeframe("migrate", "r.yaml", "--diff", "--check")[0] == 1
    assert Path("r.yaml").read_text() == text
    assert moeframe("migrate", str(ROOT / "recipes" / "quickstart.yaml"), "--check")[0] == 0


@pytest.mark.parametrize(
    ("text", "place", "why"),
    [
        ("dispatcher:\n  enable_deepep: true\n  use_flex_dispatcher: true\n", "2:3", f"{NEW} is given too."),
        ("sharding: &s {enable_deepep: true}\ndispatcher: *s\n", "1:15", "its mapping is shared with sharding.enable_"),
        ("data: &s {enable_deepep: true}\ndispatcher:\n  <<: *s\n", "1:11", "its mapping is shared with data.enable_"),
        ('dispatcher: {"enable\\x5fdeepep": true}\n', "1:14", "its spelling is unusual."),
        ("dispatcher: {name: x}\nname: |\n  ${dispatcher.enable_deepep}\n", "2:7", "the spelling of a reference"),
    ],
)  # fmt: skip
def test_what_cannot_be_decided_is_reported_and_stays(moeframe, text: str, place: str, why: str) -> None:
    Path("r.yaml").write_text(text)
    code, _, err = moeframe("migrate", "r.yaml")
    assert code == 1
    assert f"r.yaml:{place}: {OLD}: left as it is: {why}" in err
    assert Path("r.yaml").read_text() == text


def test_values_are_renamed_and_moves_are_left_to_the_user(moeframe, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(
        monkeypatch,
        {"old": "a.b", "new": "a.c", "value_map": {"true": "on top", "null": "none", "old": "new"}},
        {"old": "b.b", "new": "b.c", "value_map": {"true": "on top", "null": "none", "old": "new"}},
        {"old": "c.b", "new": "c.c", "value_map": {"null": 0}},
        {"old": "top", "new": "peak"},
        {"kind": "move", "old": "d.x", "new": "e.x"},
        {"kind": "remove", "old": "d.y"},
    )
    Path("r.yaml").write_text('a: {b: True}\nb: {b: "old"}\nc:\n  b:\ntop: {z: 1}\nd: {x: 1, y: 2}\n')
    code, _, err = moeframe("migrate", "r.yaml")
    assert code == 1
    assert err.splitlines() == [
        "r.yaml:6:5: d.x: left as it is: it belongs to another section since 0.1.0. Move it to section e, as x.",
        "r.yaml:6:11: d.y: left as it is: Gone. Remove it by hand.",
    ]
    assert Path("r.yaml").read_text() == ("a: {c: on top}\nb: {c: new}\nc:\n  c: 0\npeak: {z: 1}\nd: {x: 1, y: 2}\n")


def test_bases_are_rewritten_when_they_are_named(moeframe) -> None:
    Path("base.yaml").write_text("dispatcher: {enable_deepep: true}\n")
    Path("r.yaml").write_text("extends: [base.yaml]\n")
    code, out, err = moeframe("migrate", "r.yaml")
    assert (code, out) == (0, "r.yaml: no old keys\n")
    assert err == "base.yaml: has old keys too, and r.yaml extends it. Name it to rewrite it.\n"
    assert moeframe("migrate", "r.yaml", "base.yaml")[2] == ""
    assert Path("base.yaml").read_text() == "dispatcher: {use_flex_dispatcher: true}\n"


def test_a_file_that_is_no_recipe_exits_2_and_the_others_are_done(moeframe) -> None:
    Path("r.yaml").write_text("dispatcher: {enable_deepep: true}\n")
    Path("bad.yaml").write_text("a: [\n")
    code, _, err = moeframe("migrate", "bad.yaml", "r.yaml", "none.yaml")
    assert code == 2
    assert "bad.yaml:2:1: not valid YAML" in err
    assert "none.yaml: no such file." in err
    assert "use_flex_dispatcher" in Path("r.yaml").read_text()


def test_links_and_permissions_stay(moeframe) -> None:
    Path("real.yaml").write_text("dispatcher: {enable_deepep: true}\n")
    Path("real.yaml").chmod(0o640)
    Path("r.yaml").symlink_to("real.yaml")
    assert moeframe("migrate", "r.yaml")[0] == 0
    assert Path("r.yaml").is_symlink()
    assert stat.S_IMODE(Path("real.yaml").stat().st_mode) == 0o640
    assert sorted(path.name for path in Path().iterdir()) == ["r.yaml", "real.yaml"]


def test_old_names_are_one_line_for_the_user_or_refused(moeframe, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_what_was_told()
    arguments = ("check", str(ROOT / "recipes" / "quickstart.yaml"), f"{OLD}=false")
    code, _, err = moeframe(*arguments)
    assert code == 0
    assert err.startswith(f"warning: {OLD}=false: {OLD} is called {NEW} since 0.2.0;")
    assert len(err.splitlines()) == 1
    forget_what_was_told()
    monkeypatch.setattr(sys, "warnoptions", ["error"])
    warnings.simplefilter("error", MoeframeDeprecationWarning)
    code, _, err = moeframe(*arguments)
    assert code == 2
    assert err.startswith(f"error: {OLD}=false: {OLD} is called {NEW}")


def test_a_base_that_is_a_link_to_itself_is_told(moeframe, tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "r.yaml").write_text("extends: [loop.yaml]\nname: x\n")
    code, _, err = moeframe("migrate", "r.yaml")
    assert code == 0
    assert "loop.yaml: cannot be read: Too many levels of symbolic links." in err
