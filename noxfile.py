"""What CI runs, one session each: `nox -s NAME`. Pinned by constraints.txt."""

from __future__ import annotations

import os
import tempfile
from itertools import chain
from pathlib import Path
from typing import Final

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "layers", "api_compat", "tests", "docs", "wheel"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

ROOT: Final = Path(__file__).parent
PINNED: Final = ("-c", "constraints.txt")
CODE: Final = ("moeframe", "plugins", "compat/moeframe_compat", "tests", "docs", "noxfile.py")
PYTEST: Final = ("python", "-m", "pytest")
SIDE_BY_SIDE: Final = ("-n", "2", "--dist", "loadfile")
"""Two processes share the files: while one waits for its ranks, the other computes. Each has its own pool of ranks."""
MANY_GPU_JOBS: Final = ("-n", "16", "--dist", "loadscope")
"""Each of them waits for its ranks most of the time. They take about 3 GiB of each GPU, one 25 GiB."""
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1"}
LOWEST_TORCH: Final = "MOEFRAME_MINIMUMS_TORCH"
GPU_EXTRAS: Final = ("deepep", "megatron-fsdp", "te")
"""They need CUDA to be of use, or to be built at all."""


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on the CPU, all but those of `docs`; arguments go to pytest."""
    session.install(*PINNED, "-e", ".[test]", "-e", "./compat")
    session.run(*PYTEST, *(session.posargs or (*SIDE_BY_SIDE, "--ignore=tests/docs")), env=ONE_THREAD)


@nox.session(default=False)
def sweeps(session: nox.Session) -> None:
    """Run what `tests` leaves out: every combination where `tests` runs a covering subset; arguments go to pytest."""
    session.install(*PINNED, "-e", ".[test]", "-e", "./compat")
    session.run(*PYTEST, "-m", "sweep", *session.posargs, env=ONE_THREAD)


@nox.session(default=False)
def matrix(session: nox.Session) -> None:
    """Prove every combination of backends and write docs/matrix.json and matrix.md; arguments go to make_matrix.py."""
    session.install(*PINNED, "-e", ".[test]")
    session.run("python", "docs/make_matrix.py", *session.posargs, env=ONE_THREAD)


@nox.session
def docs(session: nox.Session) -> None:
    """Run every command and read every snippet of README.md and docs/; arguments go to pytest."""
    session.install(*PINNED, "-e", ".[test]", "-e", "./compat")
    session.run(*PYTEST, *(session.posargs or ("-n", "2", "tests/docs")), env=ONE_THREAD)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style with ruff. Installs no torch."""
    session.install(*PINNED, "ruff")
    session.run("ruff", "check", *CODE)
    session.run("ruff", "format", "--check", *CODE)


@nox.session
def types(session: nox.Session) -> None:
    """Check types with mypy, strictly."""
    session.install(*PINNED, "-e", ".[test]", "-e", "./compat", "mypy", "nox", "types-PyYAML")
    session.run("mypy")


@nox.session
def layers(session: nox.Session) -> None:
    """Check that imports flow one way. Installs no torch: that is part of the proof."""
    session.install(*PINNED, "import-linter")
    session.install("--no-deps", "-e", ".", "-e", "./compat")
    session.run("lint-imports")


@nox.session
def api_compat(session: nox.Session) -> None:
    """Check the API against the last release, and run every old name that must still work. Installs no torch.

    The baseline is the snapshot that pyproject.toml names, so that a clone without tags can be checked too.
    """
    needed = nox.project.load_toml("pyproject.toml")["project"]["dependencies"]
    session.install(*PINNED, "-e", "./compat", *(need for need in needed if not need.startswith("torch>")))
    session.install("--no-deps", "-e", ".")
    session.run("python", "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is not None)")
    session.run("python", "-m", "moeframe_compat", "check", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build what users install, install it outside of the repository, and train two steps with it there.

    The wheels are built from the source distributions, which proves that those are complete.
    """
    session.install(*PINNED, "hatchling")
    with tempfile.TemporaryDirectory(prefix="moeframe-wheel-") as folder:
        elsewhere = Path(folder)
        for project in (ROOT, ROOT / "compat"):
            session.chdir(project)
            session.run("python", "-m", "hatchling", "build", "-t", "sdist", "-d", folder)
        session.chdir(elsewhere)
        sources = sorted(map(str, elsewhere.glob("*.tar.gz")))
        session.run("python", "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, *sources)
        session.run("python", "-m", "venv", "venv")
        python = str(elsewhere / "venv" / "bin" / "python")
        wheels = sorted(map(str, elsewhere.glob("*.whl")))
        pinned = ("-c", str(ROOT / "constraints.txt"))
        session.run(python, "-m", "pip", "install", *pinned, *wheels, external=True)
        check = str(ROOT / "tests" / "wheel" / "installed.py")
        session.run(python, check, str(ROOT), *sources, external=True, env={"PYTHONPATH": "", **ONE_THREAD})


@nox.session(default=False, venv_backend="none")
def gpu(session: nox.Session) -> None:
    """Run what needs GPUs, in the Python that runs nox: it holds a CUDA build of torch and the optional libraries.

    Two parts: what compares numbers, many processes at once; then what measures speed, one by one. Together at most 8
    minutes on two H200. Without GPUs the tests are skipped, and say so. What was proved goes to docs/matrix_gpu.json,
    or where MOEFRAME_GPU_RESULTS says. Arguments go to pytest, which then runs once.
    """
    environment = {"MOEFRAME_GPU_RESULTS": "docs/matrix_gpu.json", **os.environ}
    whole = [["-m", "gpu and not alone", *MANY_GPU_JOBS, "tests/gpu"], ["-m", "gpu and alone", "tests/gpu"]]
    parts = [session.posargs] if session.posargs else whole
    failed = []
    for part in parts:
        try:
            session.run(*PYTEST, "-m", "gpu", "-rs", *part, env=environment)
        except nox.command.CommandFailed:
            failed.append(" ".join(part))
    if failed:
        session.error(f"failed: {'; '.join(failed)}")


@nox.session(default=False)
def faults(session: nox.Session) -> None:
    """Meet all fifty faults of the drill, and write the dated result to tests/data/faults.json (about 15 minutes)."""
    session.install(*PINNED, "-e", ".[test]")
    session.run("python", "tests/faults/drill.py", "0", "50", "tests/data/faults.json", env=ONE_THREAD)


@nox.session(default=False)
def minimums(session: nox.Session) -> None:
    """Run the tests on the lowest version of every dependency that pyproject.toml admits; arguments go to pytest.

    Of torch it takes the version in constraints.txt, because the usual index has the lowest one only as a build with
    several GB of CUDA. Where pip can get a CPU build of it, name it, in any form that pip takes (a version, a file):
    ``MOEFRAME_MINIMUMS_TORCH=torch==2.11.0 nox -s minimums``. The session says which torch it has tested.
    """
    needed: list[str] = []
    for file in ("pyproject.toml", "compat/pyproject.toml"):
        project = nox.project.load_toml(file)["project"]
        extras = project.get("optional-dependencies", {})
        needed += [*project["dependencies"], *chain(*(extras[name] for name in extras if name not in GPU_EXTRAS))]
    lowest = [need.replace(">=", "==") for need in needed if not need.startswith(("moeframe[", "torch>"))]
    torch = os.environ.get(LOWEST_TORCH)
    if torch is None:
        pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        torch = next(pin for pin in pins if pin.startswith("torch=="))
    session.install(*lowest, torch, "-e", ".[test]", "-e", "./compat")
    session.run("python", "-m", "pip", "list")
    session.run(*PYTEST, *session.posargs, env=ONE_THREAD)
