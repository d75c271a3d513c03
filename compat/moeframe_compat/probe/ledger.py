"""Executes declared renames: the old spelling and the new one through functions of the project.

The settings name them, each as `module:function` or `path/file.py:function`, relative to the settings' folder:

- `loader`: takes a nested mapping of recipe keys, returns the resolved config (a mapping, a dataclass, or anything with
  a `repr` that tells two configs apart). Several loaders are several ways to give a key: all must know the old one.
- `caller`: takes the dotted name of a callable and a mapping of keywords, returns what the callable made of them.
- `restorer`: takes a mapping by names of saved state, returns it by the names of today.
- `runner`: takes a command (`prog sub`) and a mapping of options, returns what the command made of them.

Heavy modules are stubs, as for the probe. A verdict is kept as long as nothing changes that the process has read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moeframe_compat.extract.cache import Cache
from moeframe_compat.policy.ledger import Change
from moeframe_compat.policy.settings import Settings
from moeframe_compat.probe.files_read import fingerprint

if TYPE_CHECKING:
    import subprocess

TIMEOUT = 60
"""Seconds for all entries together."""
_VALUES: tuple[Any, ...] = (True, False, None, 0, 7, "trial")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What running one entry showed: `rule` is "" when the old spelling works, "unknown" when nobody can tell."""

    rule: str
    why: str


def execute(changes: list[Change], settings: Settings) -> dict[str, Verdict]:
    """Run every rename and move in a ledger; verdicts by the entry's label.

    Args:
        changes: Entries whose window is open.
        settings: They name what runs an entry, and the folder from which the new release is imported.
    """
    with Execution(changes, settings) as running:
        return running.verdicts()


def ways(change: Change, settings: Settings) -> list[str]:
    """The functions of the project that take an entry in both spellings; none for an entry that cannot be run."""
    found = {
        "config": settings.loader,
        "recipe": settings.loader,
        "python": settings.caller if "(" in change.old and "(" in change.new else [],
        "checkpoint": settings.restorer,
        "cli": settings.runner,
    }
    return found.get(change.surface, []) if change.kind in ("rename", "move") else []


class Execution:
    """Runs beside whatever else there is to do, until its verdicts are asked for; see `execute`."""

    def __init__(self, changes: list[Change], settings: Settings) -> None:
        self.wanted = [c for c in changes if ways(c, settings)]
        self.root = str(settings.root.resolve())
        self.process: subprocess.Popen[str] | None = None
        self.known: dict[str, Verdict] | None = None
        self.cache = Cache()
        if self.wanted:
            request = self._request(settings)
            state = f"{sys.executable}{request}{_environment()}"
            self.name = f"ledger-{hashlib.sha256(state.encode()).hexdigest()[:40]}"
            self.known = self._kept()
            if self.known is None:
                import subprocess

                self.process = subprocess.Popen(  # noqa: S603
                    [sys.executable, "-I", str(Path(__file__).with_name("ledger_child.py")), request],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )

    def _request(self, settings: Settings) -> str:
        entries = [
            {
                "label": c.label(),
                "surface": c.surface,
                "ways": ways(c, settings),
                **_spellings(c),
                "map": c.value_map,
            }
            for c in self.wanted
        ]
        return json.dumps({"root": self.root, "values": list(_VALUES), "entries": entries})

    def _kept(self) -> dict[str, Verdict] | None:
        """The verdicts of an earlier run, if all that it read is as it was."""
        found = self.cache.load(self.name)
        if not isinstance(found, dict) or any(fingerprint(p) != mark for p, mark in found["read"].items()):
            return None
        return {label: Verdict(*answer) for label, answer in found["answers"].items()}

    def __enter__(self) -> Self:
        """Nothing: it runs since it was made."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process if nobody waited for it."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.communicate()

    def verdicts(self) -> dict[str, Verdict]:
        """Wait for the verdicts, by the entry's label."""
        if self.known is not None or self.process is None:
            return self.known or {}
        import subprocess

        try:
            out, err = self.process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as e:
            why = f"the loader gave no answer: {type(e).__name__}"
            return {c.label(): Verdict("unknown", why) for c in self.wanted}
        try:
            found = json.loads(out.rpartition("\n@answers ")[2])
        except ValueError:
            last = err.strip().splitlines()
            told = (last[-1] if last else f"exit {self.process.returncode}").replace(self.root, "")
            return {c.label(): Verdict("unknown", f"the loader cannot be run: {told}") for c in self.wanted}
        self.known = {c.label(): Verdict(*found["answers"][c.label()]) for c in self.wanted}
        if all(verdict.rule != "unknown" for verdict in self.known.values()):
            self.cache.keep(self.name, found)
        return self.known


def _spellings(c: Change) -> dict[str, str]:
    """Who takes the name ("" for the root of a config), and the name in both spellings."""
    if c.surface == "python":
        return {"owner": c.new.partition("(")[0], "old": c.name, "new": c.new_name}
    if c.surface == "cli":
        return {"owner": c.new.rpartition(" ")[0], "old": c.old.rpartition(" ")[2], "new": c.new.rpartition(" ")[2]}
    if c.surface == "checkpoint":
        return {"owner": "", "old": c.old.replace("*", "0"), "new": c.new.replace("*", "0")}
    return {"owner": "", "old": c.old, "new": c.new}


def _environment() -> str:
    """Variables that a project or Python may listen to."""
    return json.dumps(sorted(i for i in os.environ.items() if i[0].isupper() and not i[0].startswith(_PASSING)))


_PASSING = (
    "SHLVL",
    "PWD",
    "OLDPWD",
    "TERM",
    "COLUMNS",
    "LINES",
    "SSH_",
    "WINDOW",
    "SOURCE_DATE_EPOCH",
    "PYTEST_",
    "TMP",
)
