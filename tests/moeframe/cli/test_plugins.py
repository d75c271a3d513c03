from __future__ import annotations

import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

import pytest

from moeframe.cli.plugins import plugins
from moeframe.hooks import entry_points, needs

HEAD = "from moeframe.hooks import DispatcherOffer, ModuleNeed, Needs, hookimpl\n"
OFFER = """
@hookimpl
def moeframe_offer_dispatchers():
    return [DispatcherOffer(name="{name}", summary="Rows by {name}.", build=print, traits=print, needs=Needs({needs}))]
"""
OBSERVER = "@hookimpl\ndef moeframe_on_step_end(step):\n    pass\n"
COMPUTED = """
@hookimpl
def moeframe_offer_dispatchers():
    return [DispatcherOffer(name=name, summary="Computed.", build=print, traits=print) for name in ["computed"]]
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with plugins that are good, unusable, broken, double, blocked and observing."""

    def install(name: str, version: str, source: str) -> None:
        module = f"cli_{name}_plugin"
        (tmp_path / f"{module}.py").write_text(HEAD + source)
        info = tmp_path / f"moeframe_{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: moeframe-{name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[moeframe]\n{name} = {module}\n")

    install("good", "1.2", OFFER.format(name="ring", needs=""))
    need = 'modules=(ModuleNeed(name="absent_library", install="Run: pip install absent-library."),)'
    install("needy", "0.4", OFFER.format(name="needy", needs=need))
    install("gpu", "0.5", OFFER.format(name="gpu_only", needs='device_kinds=("cuda",)'))
    install("broken", "0.1", OFFER.format(name="lost", needs="") + "import nothing_of_that_name\n")
    install("double_a", "1.0", OFFER.format(name="twice", needs=""))
    install("double_b", "2.0", OFFER.format(name="twice", needs=""))
    install("blocked", "3.0", OFFER.format(name="unwanted", needs=""))
    install("watch", "1.0", OBSERVER)
    install("computed", "1.0", COMPUTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setattr(entry_points, "distributions", functools.partial(distributions, path=[str(tmp_path)]))
    monkeypatch.setattr(needs, "_driver_files", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("MOEFRAME_PLUGINS", raising=False)
    monkeypatch.setenv("MOEFRAME_BLOCKED_PLUGINS", "blocked")
    monkeypatch.setenv("COLUMNS", "80")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("cli_")]:
        del sys.modules[name]


def _printed(capsys: pytest.CaptureFixture[str]) -> str:
    plugins()
    return capsys.readouterr().out


def _section(text: str, title: str) -> str:
    """Return what stands under a title, on one line."""
    (found,) = [part for part in text.split("\n\n") if part.startswith(title)]
    return " ".join(found.removeprefix(title).split())


def test_an_offer_is_listed_with_its_summary_distribution_and_version(installed: Path, capsys) -> None:
    assert "ring usable moeframe-good 1.2 Rows by ring." in _section(_printed(capsys), "dispatcher")


def test_an_unusable_offer_says_why_and_what_to_do(installed: Path, capsys) -> None:
    listed = _section(_printed(capsys), "dispatcher")
    assert (
        "needy NOT USABLE moeframe-needy 0.4 Rows by needy. "
        "why: the module absent_library is not installed. Run: pip install absent-library."
    ) in listed
    assert "gpu_only NOT USABLE moeframe-gpu 0.5 Rows by gpu_only. why: it runs on cuda devices, and this" in listed


def test_a_broken_plugin_is_listed_with_distribution_version_entry_point_and_cause(installed: Path, capsys) -> None:
    text = _printed(capsys)
    assert _section(text, "broken plugins") == (
        "plugin 'broken' (moeframe-broken 0.1, entry point broken = cli_broken_plugin) could not be loaded: "
        "ModuleNotFoundError: No module named 'nothing_of_that_name'. "
        "Repair or uninstall it, or block it with MOEFRAME_BLOCKED_PLUGINS=broken."
    )
    assert "lost NOT USABLE moeframe-broken 0.1 why: its plugin is broken: Module" in _section(text, "dispatcher")


def test_c98_a_name_that_two_distributions_offer_is_shown_at_both(installed: Path, capsys) -> None:
    listed = _section(_printed(capsys), "dispatcher")
    assert "twice NOT USABLE moeframe-double_a 1.0" in listed
    assert "why: plugin 'double_b' (moeframe-double_b 2.0" in listed
    assert "why: plugin 'double_a' (moeframe-double_a 1.0" in listed


def test_c102_a_blocked_plugin_is_shown_with_the_reason_and_its_offer_is_not(installed: Path, capsys) -> None:
    text = _printed(capsys)
    assert _section(text, "blocked") == (
        "plugin 'blocked' (moeframe-blocked 3.0, entry point blocked = cli_blocked_plugin): "
        "named in MOEFRAME_BLOCKED_PLUGINS"
    )
    assert "unwanted" not in text
    assert "cli_blocked_plugin" not in sys.modules


def test_a_plugin_that_only_observes_is_shown_with_its_hooks(installed: Path, capsys) -> None:
    assert "moeframe-watch 1.0" in _section(_printed(capsys), "check and observe")
    assert "moeframe_on_step_end" in _section(_printed(capsys), "check and observe")


def test_a_plugin_that_must_be_imported_to_be_indexed_is_shown_with_the_reason(installed: Path, capsys) -> None:
    shown = _section(_printed(capsys), "imported at every start")
    assert "moeframe-computed 1.0" in shown
    assert "does not return a list or tuple that can be read" in shown


def test_a_broken_module_of_the_user_is_listed_and_not_raised(installed: Path, capsys) -> None:
    plugins(["module_of_nobody"])
    assert "plugin 'module_of_nobody' (module module_of_nobody)" in capsys.readouterr().out.replace("\n  ", " ")


@pytest.mark.parametrize("columns", [80, 100])
def test_the_table_keeps_to_the_width(installed: Path, capsys, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = _printed(capsys).splitlines()
    assert max(map(len, lines)) <= columns
    assert lines == [line.rstrip() for line in lines]


def test_json_says_the_same_as_data(installed: Path, capsys) -> None:
    plugins(as_json=True)
    data = json.loads(capsys.readouterr().out)
    offers = {offer["name"]: offer for offer in data["offers"] if offer["name"] != "twice"}
    assert {name: offer["usable"] for name, offer in offers.items()} == {
        "computed": True,
        "gpu_only": False,
        "lost": False,
        "needy": False,
        "ring": True,
    }
    assert offers["needy"]["reasons"] == [
        "the module absent_library is not installed. Run: pip install absent-library."
    ]
    assert (offers["ring"]["distribution"], offers["ring"]["version"]) == ("moeframe-good", "1.2")
    assert [one["plugin"] for one in data["broken"]] == ["broken"]
    assert [one["plugin"] for one in data["blocked"]] == ["blocked"]
    (double,) = data["duplicates"]
    assert [origin["version"] for origin in double["origins"]] == ["1.0", "2.0"]
    assert {one["plugin"]: one["indexed_by"] for one in data["plugins"]}["computed"] == "import"


def _moeframe(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = (
        "import atexit, sys; from moeframe.cli import main\n"
        "atexit.register(lambda: print('IMPORTED', *sorted(sys.modules), file=sys.stderr))\n"
        "main()"
    )
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_c133_the_command_needs_no_gpu_imports_no_torch_and_ends_well_with_a_broken_plugin(tmp_path: Path) -> None:
    answer = _moeframe("plugins", PYTHONPATH=str(tmp_path), MOEFRAME_PLUGINS="module_of_nobody")
    assert answer.returncode == 0, answer.stderr
    assert "alltoall" in answer.stdout
    assert "module_of_nobody" in answer.stdout
    assert "torch" not in answer.stderr.partition("IMPORTED")[2].split()


def test_c104_help_imports_no_plugin() -> None:
    answer = _moeframe("--help")
    assert answer.returncode == 0, answer.stderr
    imported = answer.stderr.partition("IMPORTED")[2].split()
    assert "moeframe" in imported
    assert [name for name in imported if name.startswith("moeframe_") or name == "torch"] == []
