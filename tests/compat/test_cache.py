from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import moeframe_compat.extract.cache as cache_module
import pytest
from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.cache import cached_snapshots
from moeframe_compat.extract.package import Extraction
from moeframe_compat.extract.trees import parse_spec
from moeframe_compat.model.snapshot import Snapshot


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that are parsed, in order; the release lies in `r/pkg`."""
    seen: list[str] = []
    read: Any = cache_module.read_part

    def counted(file: str, tree: Any) -> Any:
        seen.append(file)
        return read(file, tree)

    monkeypatch.setattr(cache_module, "read_part", counted)
    monkeypatch.setenv("MOEFRAME_COMPAT_CACHE", str(tmp_path / "kept"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r" / "pkg").mkdir(parents=True)
    for name, text in (("__init__", "from pkg.a import *\n"), ("a", "__all__ = ['x']\nx = 1\n"), ("b", "y = 2\n")):
        (tmp_path / "r" / "pkg" / f"{name}.py").write_text(text)
    return seen


def snapshot() -> Snapshot:
    return cached_snapshots([(parse_spec("dir:r"), Extraction("pkg"))])[0]


def test_a_release_is_parsed_once_and_after_an_edit_only_what_changed(reads: list[str]) -> None:
    first = snapshot().dump()
    assert len(reads) == 3
    assert snapshot().dump() == first
    Path("r/pkg/b.py").write_text("y = 2\nz = 3\n")
    assert list(snapshot().modules["pkg.b"].members) == ["y", "z"]
    assert reads[3:] == ["pkg/b.py"]


def test_what_one_module_takes_from_another_is_never_kept(reads: list[str]) -> None:
    Path("r/pkg/__init__.py").write_text("from pkg import a\n__all__ = ['q', *a.__all__]\nq = 1\n")
    assert snapshot().modules["pkg"].exports == ["q", "x"]
    Path("r/pkg/a.py").write_text("__all__ = ['x', 'w']\nx = w = 1\n")
    assert snapshot().modules["pkg"].exports == ["q", "x", "w"]
    assert reads[3:] == ["pkg/a.py"]


def test_a_cache_that_others_can_write_or_that_is_damaged_is_not_used(reads: list[str]) -> None:
    snapshot()
    (kept,) = Path("kept").glob("*.pickle")
    kept.chmod(0o666)
    snapshot()
    assert len(reads) == 6
    (kept,) = Path("kept").glob("*.pickle")
    kept.write_bytes(b"no pickle")
    snapshot()
    assert len(reads) == 9
    assert kept.stat().st_mode & 0o077 == 0


def test_a_flipped_bit_that_leaves_a_pickle_is_noticed(reads: list[str]) -> None:
    first = snapshot().dump()
    (kept,) = Path("kept").glob("*.pickle")
    text = kept.read_bytes()
    assert b"pkg.b" in text
    kept.write_bytes(text.replace(b"pkg.b", b"pkg.c"))
    assert snapshot().dump() == first
    assert len(reads) == 6


def test_a_user_without_a_home_keeps_nothing(reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MOEFRAME_COMPAT_CACHE")
    assert list(snapshot().modules) == ["pkg", "pkg.a", "pkg.b"]


def test_hidden_files_are_not_read_and_pipes_are_refused(reads: list[str]) -> None:
    Path("r/pkg/.#a.py").symlink_to("somebody@elsewhere")  # an editor's lock
    assert list(snapshot().modules) == ["pkg", "pkg.a", "pkg.b"]
    os.mkfifo("r/pkg/p.py")
    with pytest.raises(ExtractionError, match=r"not a regular file: pkg/p\.py"):
        snapshot()


@pytest.mark.parametrize("text", ["tool = 'x'\n", "[project]\nscripts = ['a']\n"])
def test_a_project_file_of_the_wrong_shape_is_named(reads: list[str], text: str) -> None:
    Path("r/pyproject.toml").write_text(text)
    with pytest.raises(ExtractionError, match=r"pyproject\.toml: not a valid project file"):
        snapshot()


def test_a_baseline_file_that_changed_is_read_again(reads: list[str]) -> None:
    for text in ("y = 2\n", "y = 2\nz = 3\n"):
        Path("r/pkg/b.py").write_text(text)
        Path("base.json").write_text(snapshot().dump())
        for _ in range(2):
            (found,) = cached_snapshots([(parse_spec("snapshot:base.json"), Extraction("pkg"))])
            assert found.label == "base"
            assert found.modules["pkg.b"] == snapshot().modules["pkg.b"]


def test_two_processes_read_what_one_reads_and_name_the_same_file(reads: list[str]) -> None:
    code = (
        "import sys\n"
        "import moeframe_compat.extract.cache as cache\n"
        "from moeframe_compat.extract.package import Extraction\n"
        "from moeframe_compat.extract.trees import parse_spec\n"
        "cache.PARALLEL = 1\n"
        "print(cache.cached_snapshots([(parse_spec('dir:r'), Extraction('pkg'))])[0].dump())\n"
    )
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "MOEFRAME_COMPAT_CACHE": "off"}
    two = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    assert two == snapshot().dump() + "\n"
    for name in ("__init__", "b"):
        Path(f"r/pkg/{name}.py").write_text("def (:\n")
    failed = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert "pkg/__init__.py:1: not valid Python" in failed.stderr
