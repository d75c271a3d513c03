"""Completes a snapshot with what exists only at run time: names that modules make, options whose names are computed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from moeframe_compat.index.public import module_is_public
from moeframe_compat.model.snapshot import Snapshot
from moeframe_compat.model.surfaces import CliOption

TIMEOUT = 30
"""Seconds for one release."""


def complete(snapshot: Snapshot, *, allowed: bool) -> list[str]:
    """Add run-time facts to a snapshot; returns what stayed unknown, for the report."""
    dynamic = sorted(p for p, m in snapshot.modules.items() if m.dynamic and module_is_public(p))
    asked = sorted({q.partition(":")[0] for q in snapshot.surfaces.open_questions})
    parsers = [p for p, m in sorted(snapshot.modules.items()) if m.file in asked]
    if snapshot.sources is None or not (dynamic or parsers):
        return []
    if not allowed:
        return [f"PY001-PY005 in {p}: it makes names at run time, and the probe is off" for p in dynamic] + [
            f"CL001-CL008 in {p}: it computes option names, and the probe is off" for p in parsers
        ]
    answers = _ask(snapshot, dynamic, parsers)
    return _names(snapshot, dynamic, answers) + _options(snapshot, parsers, answers)


def _names(snapshot: Snapshot, dynamic: list[str], answers: dict[str, Any]) -> list[str]:
    unknown = []
    for path in dynamic:
        answer = answers.get(f"names {path}", {"error": answers.get("error", "no answer")})
        module = snapshot.modules[path]
        if "error" in answer:
            unknown.append(
                f"PY001-PY005 in {path}: it makes names at run time, and the probe failed: {answer['error']}"
            )
            continue
        if answer["all"] is not None:
            module.exports = list(answer["all"])
        known = set(module.members) | set(module.lazy)
        module.lazy = sorted({*module.lazy, *(n for n in answer["names"] if n not in known)})
        module.dynamic = []
    return unknown


def _options(snapshot: Snapshot, parsers: list[str], answers: dict[str, Any]) -> list[str]:
    unknown = []
    for path in parsers:
        answer = answers.get(f"options {path}", {"error": answers.get("error", "no answer")})
        file = snapshot.modules[path].file
        if "error" in answer:
            unknown.append(f"CL001-CL008 in {path}: it computes option names, and the probe failed: {answer['error']}")
            continue
        kept = [o for o in snapshot.surfaces.options if o.file != file]
        snapshot.surfaces.options = kept + [CliOption(**{"file": file, "line": 1} | row) for row in answer["options"]]
        snapshot.surfaces.open_questions = [q for q in snapshot.surfaces.open_questions if q.partition(":")[0] != file]
    return unknown


def _ask(snapshot: Snapshot, dynamic: list[str], parsers: list[str]) -> dict[str, Any]:
    """Run the child on a copy of the sources."""
    import subprocess
    import tempfile

    assert snapshot.sources is not None
    with tempfile.TemporaryDirectory(prefix="moeframe-compat-") as folder:
        root = Path(folder)
        by_file = {m.file: m for m in snapshot.modules.values()}
        for file in snapshot.sources:
            module = by_file.get(file)
            if module is not None:
                parts = module.path.split(".")
                target = (
                    root.joinpath(*parts, "__init__.py")
                    if module.is_package
                    else root.joinpath(*parts).with_suffix(".py")
                )
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(snapshot.sources.text(file) or "", encoding="utf-8")
        request = {"path": folder, "package": snapshot.package, "names": dynamic, "options": parsers}
        child = Path(__file__).with_name("child.py")
        try:
            done = subprocess.run(  # noqa: S603
                [sys.executable, "-I", str(child)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                cwd=folder,
                timeout=TIMEOUT,
                check=False,
                env={"PATH": "", "PYTHONDONTWRITEBYTECODE": "1", "HOME": folder},
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no answer within {TIMEOUT} s"}
        except OSError as e:
            return {"error": f"cannot start: {e.strerror}"}
    try:
        answers: dict[str, Any] = json.loads(done.stdout.rpartition("\n@answers ")[2])
    except ValueError:
        last = done.stderr.strip().splitlines()
        return {"error": (last[-1] if last else f"exit {done.returncode}").replace(folder, "")}
    return answers
