"""Executes declared renames: the old spelling and the new one through functions of the project.

`loader = "module:function"` in the settings names a function that takes a nested mapping and returns the resolved
config (a mapping, a dataclass, or anything with a `repr` that tells two configs apart). `caller` names one that takes
the dotted name of a callable and a mapping of keywords, and returns what the callable made of them. Either may be
`path/file.py:function`, relative to the settings' folder. Heavy modules are stubs, as for the probe.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    import subprocess

    runs = {"config": loader, "recipe": loader, "python": caller}
    wanted = [c for c in changes if c.kind in ("rename", "move") and runs.get(c.surface)]
    wanted = [c for c in wanted if c.surface != "python" or ("(" in c.old and "(" in c.new)]
    if not wanted:
        return {}
    request: dict[str, Any] = {
        "root": str(root.resolve()),
        "values": list(_VALUES),
        "entries": [
            {
                "label": c.label(),
                "run": runs[c.surface],
                "owner": c.new.partition("(")[0] if c.surface == "python" else "",
                "old": c.name if c.surface == "python" else c.old,
                "new": c.new_name if c.surface == "python" else c.new,
                "map": c.value_map,
            }
            for c in wanted
        ],
    }
    try:
        done = subprocess.run(  # noqa: S603
            [sys.executable, "-I", str(Path(__file__).with_name("ledger_child.py"))],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        answers = json.loads(done.stdout.rpartition("\n@answers ")[2])
    except (OSError, subprocess.TimeoutExpired) as e:
        return {c.label(): Verdict("unknown", f"the loader gave no answer: {type(e).__name__}") for c in wanted}
    except ValueError:
        last = done.stderr.strip().splitlines()
        why = (last[-1] if last else f"exit {done.returncode}").replace(request["root"], "")
        return {c.label(): Verdict("unknown", f"the loader cannot be run: {why}") for c in wanted}
    return {c.label(): Verdict(*answers[c.label()]) for c in wanted}
