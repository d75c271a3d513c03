from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TINY = ROOT / "recipes" / "deepseek_v3" / "tiny.yaml"
SMALL = (
    "train.seq_len=16",
    "train.global_batch_size=4",
    "train.micro_batch_size=2",
    "model.hidden_size=32",
    "model.intermediate_size=32",
    "launch.device=cpu",
    "train.steps=6",
)
TWO = ("launch.nproc_per_node=2", "parallel.ep=2", "dispatcher.name=alltoall")


@dataclass
class Ended:
    """A command that has ended, and the run directory it named."""

    code: int
    out: str
    err: str
    cwd: Path

    @property
    def run_dir(self) -> Path:
        lines = [line for line in self.out.splitlines() if line.startswith("run directory: ")]
        return self.cwd / lines[0].removeprefix("run directory: ").split(",")[0]

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.run_dir / "metrics.jsonl").read_text().splitlines()]


class Runner:
    """Runs moeframe as a user does, in an empty working directory, with the tests' plugins importable."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MOEFRAME_")}
        self.env = {**inherited, "PYTHONPATH": str(ROOT / "tests" / "data" / "plugins"), "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [sys.executable, *(launcher or ()), "-m", "moeframe", *arguments]
        return subprocess.Popen(
            command, cwd=self.cwd, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ended(self, process: subprocess.Popen[str], timeout: float = 120) -> Ended:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Ended(code=process.returncode, out=out, err=err, cwd=self.cwd)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command and see to it that it has ended when the block ends."""
        process = self.start(*arguments)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def __call__(self, *arguments: str, timeout: float = 120) -> Ended:
        return self.ended(self.start(*arguments), timeout)

    def torchrun(self, *arguments: str, options: tuple[str, ...] = (), timeout: float = 120) -> Ended:
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *options)
        return self.ended(self.start(*arguments, launcher=launcher), timeout)


@pytest.fixture
def moeframe(tmp_path: Path) -> Runner:
    return Runner(tmp_path)
