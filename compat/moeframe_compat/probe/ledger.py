"""Executes declared config changes: the old spelling and the new one through the project's own loader.

`loader = "module:function"` in the settings names a function that takes a nested mapping and returns the resolved
config (a mapping, a dataclass, or anything with a `repr` that tells two configs apart).
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


def execute(changes: list[Change], loader: str, root: Path) -> dict[str, Verdict]:
    """Run every config rename and move of a ledger; verdicts by the entry's label.

    Args:
        changes: Entries whose window is open.
        loader: `module:function` of the new release.
        root: Folder from which the new release is imported.
    """
    import subprocess

    wanted = [c for c in changes if c.surface in ("config", "recipe") and c.kind in ("rename", "move")]
    if not wanted:
        return {}
    request: dict[str, Any] = {
        "root": str(root.resolve()),
        "loader": loader,
        "values": list(_VALUES),
        "entries": [{"label": c.label(), "old": c.old, "new": c.new, "map": c.value_map} for c in wanted],
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
