"""The directory of one run: what was asked, where it ran, what came out. Importable without torch."""

from __future__ import annotations

import errno
import json
import os
import platform
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from moeframe.errors import JobFailedError, MoeframeError, UserInputError
from moeframe.launch.environment import World
from moeframe.watch.files import write_whole
from moeframe.watch.stall import read_json

__all__ = ["RunDirectory", "cannot_write", "why_no_run"]

_DISTRIBUTIONS = ("moeframe", "torch", "numpy", "omegaconf", "pluggy", "safetensors", "triton", "transformer-engine")


def cannot_write(what: str, error: OSError) -> MoeframeError:
    """Return what to raise when nothing has run yet: a full disk fails the job, anything else is refused input."""
    text = f"{what} ({error.strerror})."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return JobFailedError(f"{text} Make room, or choose another place with train.output_dir=DIR.")
    return UserInputError(f"{text} Choose a writable place with train.output_dir=DIR.")


def why_no_run(path: Path) -> str:
    """Return why a path names no run directory, with the one that is meant if it lies in one; "" when it names one."""
    try:
        if (path / "recipe.yaml").is_file():
            return ""
        why = (
            "it has no recipe.yaml" if path.is_dir() else "it is a file" if path.exists() else "there is no such folder"
        )
        around = [folder for folder in path.parents[:3] if (folder / "recipe.yaml").is_file()]
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    return f"{why}; it lies in one, {around[0]}" if around and (around[0] / "environment.json").exists() else why


class RunDirectory:
    """``<output_dir>/<recipe name>/<UTC time>-<short id>/``.

    It holds recipe.yaml, environment.json, ranks.json, metrics.jsonl, summary.json, log/ and checkpoints/.
    """

    def __init__(self, path: Path) -> None:
        """Take an existing directory."""
        self.path = path

    @classmethod
    def create(cls, output_dir: Path, name: str) -> RunDirectory:
        """Make a new directory.

        Raises:
            UserInputError: it cannot be made or written.
            JobFailedError: the disk is full.
        """
        stamp = datetime.now(tz=UTC).strftime("%Y%m%dT%H%M%SZ")
        path = output_dir / name / f"{stamp}-{secrets.token_hex(2)}"
        try:
            (path / "log").mkdir(parents=True, exist_ok=False)
        except OSError as error:
            what = f"train.output_dir = {str(output_dir)!r}: the run directory {path} cannot be made"
            raise cannot_write(what, error) from error
        return cls(path)

    @property
    def start_command(self) -> str:
        """What runs this recipe anew, in a directory of its own, as a person types it."""
        return f"`{shlex.join(self._command())}`"

    @property
    def resume_command(self) -> str:
        """What goes on from the last whole checkpoint, as a person types it."""
        return f"`{shlex.join([*self._command(), '--resume', str(self.path)])}`"

    def _command(self) -> list[str]:
        """Return the command with the plugins that nobody installed; their names were given with the last start."""
        launch = read_json(self.launch_file)
        plugins = launch.get("plugins", ()) if isinstance(launch, dict) else ()
        named = [part for plugin in plugins for part in ("--plugin", str(plugin))]
        return ["moeframe", "run", *named, str(self.recipe_file)]

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.yaml"

    @property
    def launch_file(self) -> Path:
        """With which plugins that are not installed the job was started."""
        return self.path / "launch.json"

    @property
    def metrics_file(self) -> Path:
        """One JSON object a step."""
        return self.path / "metrics.jsonl"

    @property
    def loads_file(self) -> Path:
        """The load of every expert, by step."""
        return self.path / "loads.jsonl"

    @property
    def curves_file(self) -> Path:
        """The picture of the run."""
        return self.path / "curves.png"

    @property
    def ended_file(self) -> Path:
        """Which signal ended the run before a step boundary; only then it is there."""
        return self.path / "ended.json"

    @property
    def log_dir(self) -> Path:
        """Logs by rank."""
        return self.path / "log"

    def ledger_file(self, rank: int) -> Path:
        """The collectives of one rank, when it failed under `debug.ledger`."""
        return self.path / "ledger" / f"rank-{rank}.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints by step."""
        return self.path / "checkpoints"

    def write_json(self, name: str, content: Mapping[str, Any] | Sequence[Any]) -> None:
        """Write a small file of the directory whole or not at all.

        Raises:
            ValueError: a number is NaN or infinite, which JSON does not have.
        """
        write_whole(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def write_environment(
        self,
        world: World,
        *,
        device: str,
        plugins: Sequence[str],
        launch: Mapping[str, Any] | None,
        distributions: Sequence[str] = (),
    ) -> None:
        """Record versions, launcher and machine.

        Args:
            world: of the job.
            device: its kind.
            plugins: where they come from.
            launch: what restarts of the same job share.
            distributions: whose versions matter besides the usual ones, where they are installed.
        """
        versions = {}
        for distribution in (*_DISTRIBUTIONS, *distributions):
            try:
                versions[distribution] = version(distribution)
            except PackageNotFoundError:
                continue
        self.write_json(
            "environment.json",
            {
                "versions": versions,
                "plugins": sorted(plugins),
                "python": sys.version.split()[0],
                "platform": platform.platform(),
                "device": device,
                "launcher": world.launcher,
                "launch": launch,
                "world_size": world.world_size,
            },
        )

    @staticmethod
    def describe_rank(world: World) -> dict[str, Any]:
        """Return this process's entry of ranks.json."""
        return {"rank": world.rank, "pid": os.getpid(), "host": socket.gethostname()}
