"""What CI runs, one session each: `nox -s NAME`. Pinned by constraints.txt."""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.10"
nox.options.sessions = ["lint", "types", "layers", "tests"]
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

PINNED = ("-c", "constraints.txt")
CODE = ("moeframe", "plugins", "compat/moeframe_compat", "tests", "noxfile.py")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on the CPU; arguments go to pytest."""
    session.install(*PINNED, "-e", ".[test]", "-e", "./compat")
    session.run("python", "-m", "pytest", *session.posargs, env={"OMP_NUM_THREADS": "1"})


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
