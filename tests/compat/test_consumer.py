from __future__ import annotations

from pathlib import Path

import pytest
from moeframe_compat.cli import main
from moeframe_compat.consumer.report import check_plugin
from moeframe_compat.pytest_plugin import fail_if_broken

OLD = """
import pluggy
from typing import Protocol
hookspec = pluggy.HookspecMarker("moe")
hookimpl = pluggy.HookimplMarker("moe")

@hookspec
def offer(config, enable_deepep): ...

class Dispatcher(Protocol):
    def send(self, x): ...

def route(x, num_experts=8): return x
def unused(a): return a
class Engine:
    def __init__(self, n=1): self.local = n
"""
NEW = """
import pluggy
from typing import Protocol
hookspec = pluggy.HookspecMarker("moe")
hookimpl = pluggy.HookimplMarker("moe")

@hookspec
def offer(config, use_flex): ...

class Dispatcher(Protocol):
    name: str
    def send(self, x): ...

def route(x, n_experts=8): return x
def unused(b): return b
class Engine:
    def __init__(self, n=1): self.inner = n
"""
PLUGIN = """
from moe import Engine, hookimpl, route

@hookimpl
def offer(config, enable_deepep):
    return Mine()

class Mine:
    def send(self, x):
        return route(x, num_experts=4)

def peek():
    return route(1), Engine().local
"""


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("v1", OLD), ("v2", NEW), ("v1b", OLD + "\ndef fresh(): return 1\n")):
        (tmp_path / name / "moe").mkdir(parents=True)
        (tmp_path / name / "moe" / "__init__.py").write_text(text)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", "off")
    return tmp_path


def test_only_what_the_plugin_uses_is_reported_with_its_line_and_rewrite(releases: Path) -> None:
    hits = check_plugin(Path("mine"), "dir:v1", "dir:v2", "moe").hits
    found = {(h.place.line, h.finding.rule) for h in hits}
    assert found == {(5, "HK002"), (8, "PA001"), (10, "PY102"), (13, "PY201")}
    assert {h.rewrite for h in hits if h.finding.rule == "PY102"} == {"write n_experts for num_experts"}


def test_a_pair_that_breaks_nothing_is_clean(releases: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["plugin", "mine", "--from", "dir:v1", "--package", "moe", "--to"]
    assert main([*args, "dir:v1b"]) == 0
    assert main([*args, "dir:v2"]) == 1
    assert "mine" not in capsys.readouterr().err


def test_recipes_of_the_plugin_are_read(releases: Path) -> None:
    for name, key in (("c1", "enable_deepep"), ("c2", "use_flex")):
        (releases / name / "moe").mkdir(parents=True)
        text = f"from dataclasses import dataclass\n@dataclass\nclass RunConfig:\n    {key}: bool = False\n"
        (releases / name / "moe" / "__init__.py").write_text(text)
    (releases / "mine" / "run.yaml").write_text("model: 1\ndispatch:\n  enable_deepep: true\n")
    hits = check_plugin(Path("mine"), "dir:c1", "dir:c2", "moe").hits
    assert [(h.place.file, h.place.line) for h in hits if h.finding.rule.startswith("CF")] == [("mine/run.yaml", 3)]


def test_annotations_open_the_file_seen_from_the_working_directory_and_bring_a_fix(
    releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugin", "mine", "--from", "dir:v1", "--to", "dir:v2", "--package", "moe", "--format", "github"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("::error")]
    assert len(lines) == 4
    for line in lines:
        assert Path(line.split("file=")[1].split(",")[0]).is_file()
        assert not line.endswith(". ")


def test_a_plugin_that_is_not_there_exits_3(releases: Path) -> None:
    assert main(["plugin", "nowhere", "--from", "dir:v1", "--to", "dir:v2", "--package", "moe"]) == 3


def test_the_pytest_helper_fails_with_the_places(releases: Path) -> None:
    fail_if_broken("mine", package="moe", old="dir:v1", new="dir:v1b")
    with pytest.raises(pytest.fail.Exception, match=r"plugin.py:10: error PY102"):
        fail_if_broken("mine", package="moe", old="dir:v1", new="dir:v2")


DECLARED = """
[[rename]]
surface = "config"
old = "run.enable"
new = "run.use"
since = "0.2.0"
remove_in = "0.4.0"
[[rename]]
surface = "python"
old = "moe.route(num)"
new = "moe.route(count)"
since = "0.2.0"
remove_in = "0.4.0"
"""
RELEASE = """
from dataclasses import dataclass
__version__ = '{version}'
@dataclass
class RunConfig:
    {key}: bool = False
def route(x, {parameter}=1): return x
"""


def test_old_names_that_still_work_are_told_of_and_fail_nothing(
    releases: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, version, key, parameter in (("d1", "0.1.0", "enable", "num"), ("d2", "0.2.0", "use", "count")):
        (releases / name / "moe").mkdir(parents=True)
        text = RELEASE.format(version=version, key=key, parameter=parameter)
        (releases / name / "moe" / "__init__.py").write_text(text)
    (releases / "d2" / "moe" / "changes.toml").write_text(DECLARED)
    (releases / "mine" / "plugin.py").write_text("from moe import route\nroute(1, num=2)\n")
    (releases / "mine" / "run.yaml").write_text("run: {n: 1, enable: true}\n")
    assert main(["plugin", "mine", "--from", "dir:d1", "--to", "dir:d2", "--package", "moe"]) == 0
    out = capsys.readouterr().out
    assert "plugin.py:2: notice PY102 an old name: moe.route(num)" in out
    assert "run.yaml:1: notice CF002 an old name: moe.RunConfig.enable" in out
    assert "write use for enable; enable works until 0.4.0" in out
    assert "0 places to change, 2 more before old names end" in out
    (releases / "d2" / "moe" / "changes.toml").unlink()
    assert main(["plugin", "mine", "--from", "dir:d1", "--to", "dir:d2", "--package", "moe"]) == 1


def test_a_member_with_a_body_hits_those_who_do_not_inherit(releases: Path) -> None:
    contract = "from typing import Protocol, runtime_checkable\n@runtime_checkable\nclass D(Protocol):\n"
    contract += "    def send(self, x): ...\n"
    for name, body in (("p1", ""), ("p2", "    def close(self): return None\n")):
        (releases / name / "moe").mkdir(parents=True)
        (releases / name / "moe" / "__init__.py").write_text(contract + body)
        (releases / name / "pyproject.toml").write_text("[tool.moeframe_compat]\nnominal = ['moe']\n")
    plugin = "from moe import D\nclass Heir(D):\n    def send(self, x): return x\n"
    (releases / "mine" / "plugin.py").write_text(plugin + "class Alike:\n    def send(self, x): return x\n")
    hits = check_plugin(Path("mine"), "dir:p1", "dir:p2", "moe").hits
    assert [(h.finding.rule, h.place.line) for h in hits] == [("PA001", 4)]


@pytest.mark.parametrize(
    ("first", "lines"),
    [("import moe\n", [2]), ("import moe.io\n", []), ("from moe.io import save\nimport moe\n", [])],
)
def test_a_submodule_that_its_package_imports_no_longer_hits_those_who_leave_that_to_it(
    tmp_path: Path, first: str, lines: list[int]
) -> None:
    for release, text in (("old", "import moe.io\n"), ("new", "")):
        (tmp_path / release / "moe").mkdir(parents=True)
        (tmp_path / release / "moe" / "__init__.py").write_text(text)
        (tmp_path / release / "moe" / "io.py").write_text("def load(path): return path\ndef save(path): return path\n")
    plugin = tmp_path / "plugin.py"
    plugin.write_text(first + "moe.io.load('x')\n")
    found = check_plugin(plugin, f"dir:{tmp_path / 'old'}", f"dir:{tmp_path / 'new'}", "moe")
    assert [h.place.line for h in found.hits] == lines


def test_a_method_that_is_asked_to_take_more_hits_those_who_implement_it(tmp_path: Path) -> None:
    contract = "from typing import Protocol\nclass Sink(Protocol):\n    def send(self, x: {}) -> None: ...\n"
    for release, kind in (("old", "str"), ("new", "str | bytes")):
        (tmp_path / release / "moe").mkdir(parents=True)
        (tmp_path / release / "moe" / "__init__.py").write_text(contract.format(kind))
    plugin = tmp_path / "plugin.py"
    plugin.write_text("class Mine:\n    def send(self, x: str) -> None:\n        print(x)\n")
    (hit,) = check_plugin(plugin, f"dir:{tmp_path / 'old'}", f"dir:{tmp_path / 'new'}", "moe").hits
    assert (hit.finding.rule, hit.place.line) == ("PA011", 2)


def test_a_variable_that_the_plugin_sets_and_nobody_reads_any_more(tmp_path: Path) -> None:
    for name, variable in (("v1", "MOE_TRACE"), ("v2", "MOE_TRACING")):
        (tmp_path / name / "moe").mkdir(parents=True)
        text = f"import os\ndef on(): return os.environ.get({variable!r})\n"
        (tmp_path / name / "moe" / "__init__.py").write_text(text)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.py").write_text("import os\nimport moe\nos.environ['MOE_TRACE'] = '1'\n")
    (tmp_path / "mine" / "other.py").write_text("import moe\nmoe.on()\n")
    hits = check_plugin(tmp_path / "mine", f"dir:{tmp_path / 'v1'}", f"dir:{tmp_path / 'v2'}", "moe").hits
    assert [(h.finding.rule, Path(h.place.file).name, h.place.line) for h in hits] == [("EN001", "run.py", 3)]
