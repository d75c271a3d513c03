"""Checks the wheels where they are installed, as their user would: ``python installed.py REPOSITORY SDIST...``.

Runs outside of the repository, in the folder where `nox -s wheel` put the source distributions, with the Python that
the wheels were installed for.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SMALL: Final = (
    "train.steps=2",
    "train.seq_len=16",
    "train.global_batch_size=4",
    "train.micro_batch_size=2",
    "train.eval_every=0",
    "launch.device=cpu",
)


def moeframe(*arguments: str) -> str:
    """Run the installed command and return what it printed."""
    command = [str(Path(sys.executable).with_name("moeframe")), *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, f"{' '.join(arguments)} ended with {answer.returncode}:\n{answer.stderr}"
    return answer.stdout


def require_installed(repository: Path) -> None:
    """Every package comes from this environment's site-packages, and none from the repository."""
    on_path = [entry for entry in sys.path if Path(entry or ".").resolve().is_relative_to(repository)]
    assert on_path in ([], [str(Path(__file__).parent)]), f"the repository is on the path: {on_path}"
    home = Path(sys.prefix).resolve()
    points = distribution("moeframe").entry_points.select(group="moeframe")
    plugins = {point.module.partition(".")[0] for point in points}
    assert len(plugins) >= 5, plugins
    for package in ("moeframe", "moeframe_compat", *sorted(plugins)):
        spec = find_spec(package)
        assert spec is not None, f"{package} is not installed"
        assert spec.origin is not None, f"{package} has no file"
        assert Path(spec.origin).resolve().is_relative_to(home), f"{package} is at {spec.origin}, not within {home}"


def require_working_plugins() -> None:
    """Every plugin of the wheel loads, and every backend that needs no more than its dependencies can be used."""
    listing = json.loads(moeframe("plugins", "--json"))
    assert listing["broken"] == [], listing["broken"]
    unusable = [offer["name"] for offer in listing["offers"] if not offer["usable"]]
    sys.stdout.write(f"not usable here: {', '.join(unusable) or 'none'}\n")
    kinds = {offer["kind"] for offer in listing["offers"] if offer["usable"]}
    assert kinds == {"dispatcher", "sharding", "schedule", "compute", "data"}, kinds


def main(repository: str, *sources: str) -> None:
    """Check everything; an AssertionError names what is wrong."""
    require_installed(Path(repository).resolve())
    require_working_plugins()
    for source in sources:
        with tarfile.open(source) as archive:
            archive.extractall("sources", filter="data")
    (recipe,) = Path("sources").glob("*/recipes/quickstart.yaml")
    sys.stdout.write(moeframe("check", str(recipe)))
    sys.stdout.write(moeframe("run", str(recipe), *SMALL))
    (metrics,) = Path("runs").glob("quickstart/*/metrics.jsonl")
    steps = [json.loads(line)["step"] for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert steps == [1, 2], steps


if __name__ == "__main__":
    main(*sys.argv[1:])
