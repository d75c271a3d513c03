"""Executes declared renames: the old spelling and the new one through functions of the project.

`loader = "module:function"` in the settings names a function that takes a nested mapping and returns the resolved
config (a mapping, a dataclass, or anything with a `repr` that tells two configs apart). `caller` names one that takes
the dotted name of a callable and a mapping of keywords, and returns what the callable made of them. Either may be
`path/file.py:function`, relative to the settings' folder. Heavy modules are stubs, as for the probe.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from moeframe_compat.policy.ledger import Change

TIMEOUT = 60
"""Seconds for all entries together."""
_VALUES: tuple[Any, ...] = (True, False, None, 0, 7, "trial")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What running one entry showed: `rule` is "" when the old spelling works, "unknown" when nobody can tell."""

    rule: str
    why: str


def execute(changes: list[Change], loader: str, caller: str, root: Path) -> dict[str, Verdict]:
    """Run every rename and move of config keys and of parameters in a ledger; verdicts by the entry's label.

    Args:
        changes: Entries whose window is open.
        loader: Of the new release; "" leaves config entries alone.
        caller: Of the new release; "" leaves parameters alone.
        root: Folder from which the new release is imported.
    """
    with Execution(changes, loader, caller, root) as running:
        return running.verdicts()


class Execution:
    """Runs beside whatever else there is to do, until its verdicts are asked for; see `execute`."""

    def __init__(self, changes: list[Change], loader: str, caller: str, root: Path) -> None:
        runs = {"config": loader, "recipe": loader, "python": caller}
        wanted = [c for c in changes if c.kind in ("rename", "move") and runs.get(c.surface)]
        self.wanted = [c for c in wanted if c.surface != "python" or ("(" in c.old and "(" in c.new)]
        self.root = str(root.resolve())
        self.process: subprocess.Popen[str] | None = None
        if self.wanted:
            self.process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-I", str(Path(__file__).with_name("ledger_child.py")), self._request(runs)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )

    def _request(self, runs: dict[str, str]) -> str:
        entries = [
            {
                "label": c.label(),
                "run": runs[c.surface],
                "owner": c.new.partition("(")[0] if c.surface == "python" else "",
                "old": c.name if c.surface == "python" else c.old,
                "new": c.new_name if c.surface == "python" else c.new,
                "map": c.value_map,
            }
            for c in self.wanted
        ]
        return json.dumps({"root": self.root, "values": list(_VALUES), "entries": entries})

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
        if self.process is None:
            return {}
        try:
            out, err = self.process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired as e:
            why = f"the loader gave no answer: {type(e).__name__}"
            return {c.label(): Verdict("unknown", why) for c in self.wanted}
        try:
            answers = json.loads(out.rpartition("\n@answers ")[2])
        except ValueError:
            last = err.strip().splitlines()
            told = (last[-1] if last else f"exit {self.process.returncode}").replace(self.root, "")
            return {c.label(): Verdict("unknown", f"the loader cannot be run: {told}") for c in self.wanted}
        return {c.label(): Verdict(*answers[c.label()]) for c in self.wanted}
