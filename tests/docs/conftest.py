"""Reads the pages under test, and runs what they show in a folder that looks like a fresh clone to it."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 500
"""Of one command; a training run takes a few seconds on an idle machine, and far longer on a busy one."""

_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARKER: Final = re.compile(r"<!-- (not run|over|refused): (.+) -->")
_FILE: Final = re.compile(r"`([^`]+)`:")


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page, and what the lines right above it say of it.

    `file`: where its text belongs, from a line such as ``docs.yaml`:`` above it. `not_run`, `over`, `refused`: from a
    comment such as ``<!-- not run: needs a cluster -->``; `over` names the recipe that a fragment changes, `refused`
    says words of the message with which a recipe is refused.
    """

    page: Path
    line: int
    language: str
    text: str
    file: str | None = None
    not_run: str | None = None
    over: str | None = None
    refused: str | None = None

    @property
    def place(self) -> str:
        """Where it stands, as an editor takes it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    source = page.read_text(encoding="utf-8")
    assert source.count("```") == 2 * len(_FENCE.findall(source)), f"{page.name}: a fence is not closed or indented"
    blocks = []
    for match in _FENCE.finditer(source):
        found: dict[str, str] = {}
        above = [line for line in source[: match.start()].split("\n") if line]
        while above and (marker := _MARKER.fullmatch(above[-1]) or _FILE.fullmatch(above[-1])):
            key, value = marker.groups() if marker.re is _MARKER else ("file", marker[1])
            found[key.replace(" ", "_")] = value
            above.pop()
        line = source.count("\n", 0, match.start()) + 1
        blocks.append(Block(page=page, line=line, language=match[1], text=match[2], **found))
    return blocks


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command of a console block and the output that the page shows for it; empty: none is shown."""

    command: str
    shown: str


def read_steps(text: str) -> list[Step]:
    """Return the commands of a console block: lines after ``$``, or every line where none starts with it.

    A command goes on in the next line after a backslash.
    """
    lines = text.replace("\\\n", "\\\0").splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [Step(command=line.replace("\0", "\n"), shown="") for line in lines if line.strip()]
    steps: list[Step] = []
    for line in lines:
        if line.startswith("$ "):
            steps.append(Step(command=line.removeprefix("$ ").replace("\0", "\n"), shown=""))
        else:
            steps[-1] = Step(command=steps[-1].command, shown=f"{steps[-1].shown}{line}\n")
    return steps


def pattern_of(shown: str) -> re.Pattern[str]:
    """Return what the output must match: ``...`` is any text in a line, on a line of its own any number of lines."""
    lines = [
        r"(?:[^\n]*\n)*?"
        if line.strip() == "..."
        else "[^\n]*?".join(map(re.escape, line.rstrip().split("..."))) + "\n"
        for line in shown.splitlines()
    ]
    return re.compile("".join(lines))


@dataclass
class Workspace:
    """A folder with the shipped recipes, in which the blocks of one page run one after the other."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, folder: Path) -> Workspace:
        """Fill the folder; what pip installs there stays there. `DeepSeek-tiny` is a Hugging Face directory."""
        shutil.copytree(ROOT / "recipes", folder / "recipes")
        (folder / "DeepSeek-tiny").mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(ROOT / "tests" / "data" / "dsv3_parity" / name, folder / "DeepSeek-tiny")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("MOEFRAME_", "PYTEST_"))}
        installed = str(folder / ".installed")
        return cls(
            folder=folder,
            environment={
                **inherited,
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": installed,
                "PIP_TARGET": installed,
                "PIP_NO_INDEX": "1",
                "XDG_CACHE_HOME": str(folder / ".cache"),
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "100",
            },
        )

    def run(self, block: Block) -> None:
        """Do with a block what its language asks for.

        Raises:
            AssertionError: it does not do what the page says.
        """
        if block.file is not None:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text, encoding="utf-8")
        if block.not_run is not None:
            return
        kinds: dict[str, Callable[[Block], None]] = {
            "console": self._console,
            "yaml": self._yaml,
            "python": self._python,
            "toml": lambda block: tomllib.loads(block.text) and None,
            "json": lambda block: [json.loads(line) for line in block.text.splitlines()] and None,
        }
        known = ", ".join(kinds)
        _require(block.language in kinds, f"{block.place}: no way to check a block of {block.language!r}; use {known}")
        kinds[block.language](block)

    def shell(self, command: str, previous: int = 0) -> tuple[int, str]:
        """Run a command; return its exit code and what it printed. `previous` is what ``$?`` says to it."""
        answer = subprocess.run(
            ["bash", "-c", f"(exit {previous}); {command}"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        return answer.returncode, answer.stdout

    def _console(self, block: Block) -> None:
        """Run the commands: each ends with 0, with 2 where the page shows an error, or the next asks for the code."""
        code, steps = 0, read_steps(block.text)
        for number, step in enumerate(steps):
            code, output = self.shell(step.command, code)
            told = f"{block.place}: {step.command}\nended with {code} and printed:\n{output}"
            asked = number + 1 < len(steps) and "$?" in steps[number + 1].command
            _require(code == 2 if step.shown.startswith("error:") else code == 0 or asked, told)
            normal = "".join(f"{line.rstrip()}\n" for line in output.splitlines())
            same = not step.shown or pattern_of(step.shown).fullmatch(normal) is not None
            _require(same, f"{told}\nThe page shows:\n{step.shown}")

    def _yaml(self, block: Block) -> None:
        """Check a recipe; what has no `schema_version` becomes one on top of a shipped recipe."""
        path = self.folder / (block.file or f"recipes/at_line_{block.line}.yaml")
        if "schema_version:" not in block.text:
            base = self.folder / (block.over or "recipes/quickstart.yaml")
            path.write_text(f"extends: [{os.path.relpath(base, path.parent)}]\n{block.text}", encoding="utf-8")
        elif block.file is None:
            path.write_text(block.text, encoding="utf-8")
        code, output = self.shell(f"moeframe check {path.relative_to(self.folder)}")
        wanted = 0 if block.refused is None else 2
        _require(code == wanted, f"{block.place}: check ended with {code}, not {wanted}:\n{output}")
        _require((block.refused or "") in output, f"{block.place}: refused for another reason:\n{output}")

    def _python(self, block: Block) -> None:
        if block.file is not None:
            ast.parse(block.text, block.file)
            return
        script = self.folder / f"at_line_{block.line}.py"
        script.write_text(block.text, encoding="utf-8")
        code, output = self.shell(f"python {script.name}")
        _require(code == 0, f"{block.place} ended with {code}:\n{output}")


def _require(condition: bool, message: str) -> None:
    """Fail with nothing but the message: the page is at fault, not this code."""
    if not condition:
        pytest.fail(message, pytrace=False)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Return a workspace in which nothing has run."""
    return Workspace.at(tmp_path)


@pytest.fixture(scope="session")
def blocks_of() -> Callable[[str], list[Block]]:
    """Return a function from a page, relative to the repository, to its blocks."""
    return lambda page: read_blocks(ROOT / page)
