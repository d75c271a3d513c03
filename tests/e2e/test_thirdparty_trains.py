"""A dispatcher of somebody else: built into a wheel, installed, listed, checked and trained with, by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "data" / "thirdparty_dispatcher"
RECIPE = Path(__file__).parents[2] / "recipes" / "deepseek_v3" / "tiny.yaml"


@pytest.fixture(scope="session")
def installed_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder into which pip installed the distribution, without an index."""
    folder = tmp_path_factory.mktemp("thirdparty")
    source = shutil.copytree(SOURCE, folder / "source")
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    answer = subprocess.run([*pip, "--target", str(target), str(source)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return target


def _moeframe(installed: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys; from moeframe.cli import main; sys.exit(main())", *arguments],
        env={**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1", "COLUMNS": "80"},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_plugins_lists_it_with_origin_and_version(installed_ring: Path, tmp_path: Path) -> None:
    answer = _moeframe(installed_ring, "plugins", "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (ring,) = [offer for offer in json.loads(answer.stdout)["offers"] if offer["name"] == "ring"]
    assert (ring["kind"], ring["distribution"], ring["version"]) == ("dispatcher", "moeframe-ring", "0.3.0")
    assert ring["entry_point"] == "ring = moeframe_ring.plugin"
    assert ring["usable"]
    table = _moeframe(installed_ring, "plugins", cwd=tmp_path).stdout
    (line,) = [line for line in table.splitlines() if line.split()[:1] == ["ring"]]
    assert line.split() == ["ring", "usable", "moeframe-ring", "0.3.0"]


def test_a_recipe_that_names_it_passes_the_check(installed_ring: Path, tmp_path: Path) -> None:
    answer = _moeframe(installed_ring, "check", str(RECIPE), "dispatcher.name=ring", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


def test_a_recipe_that_names_it_is_refused_where_it_is_not_installed(tmp_path: Path) -> None:
    answer = _moeframe(tmp_path, "check", str(RECIPE), "dispatcher.name=ring", cwd=tmp_path)
    assert answer.returncode == 2
    assert "no installed plugin offers it" in answer.stderr


def test_its_options_are_checked_like_any_others(installed_ring: Path, tmp_path: Path) -> None:
    good = ("dispatcher.name=ring", "dispatcher.options.reverse=true")
    assert _moeframe(installed_ring, "check", str(RECIPE), *good, cwd=tmp_path).returncode == 0
    bad = ("dispatcher.name=ring", "dispatcher.options.revers=true")
    answer = _moeframe(installed_ring, "check", str(RECIPE), *bad, cwd=tmp_path)
    assert answer.returncode == 2
    assert "reverse" in answer.stderr


def _losses(installed: Path, dispatcher: str, cwd: Path) -> list[float]:
    """Train two steps in float64 on two processes; return the losses."""
    layout = ("parallel.ep=2", "launch.nproc_per_node=2", "launch.device=cpu")
    answer = _moeframe(
        installed,
        "run",
        str(RECIPE),
        f"dispatcher.name={dispatcher}",
        "train.steps=2",
        "train.precision=float64",
        *layout,
        cwd=cwd,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    (metrics,) = cwd.glob("runs/*/*/metrics.jsonl")
    return [json.loads(line)["loss"] for line in metrics.read_text().splitlines()]


def test_it_trains_by_name_to_the_losses_of_any_other_dispatcher(installed_ring: Path, tmp_path: Path) -> None:
    losses = {}
    for dispatcher in ("ring", "alltoall"):
        folder = tmp_path / dispatcher
        folder.mkdir()
        losses[dispatcher] = _losses(installed_ring, dispatcher, folder)
    assert len(losses["ring"]) == 2
    assert losses["ring"] == pytest.approx(losses["alltoall"], rel=1e-9)
