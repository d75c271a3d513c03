"""Runs in a process of its own: takes the old and the new spelling of declared renames. Standard library only."""

from __future__ import annotations

import dataclasses
import functools
import gc
import importlib
import importlib.util
import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

Run = Callable[..., Any]
"""Takes (key, value) pairs and returns what they resolve to."""


def _nested(*pairs: tuple[str, Any]) -> dict[str, Any]:
    """`("a.b", 1)` gives `{"a": {"b": 1}}`."""
    out: dict[str, Any] = {}
    for dotted, value in pairs:
        at = out
        *groups, last = dotted.split(".")
        for g in groups:
            at = at.setdefault(g, {})
        at[last] = value
    return out


def _load(run: Run, *pairs: tuple[str, Any]) -> tuple[str, list[str]]:
    """The result as a text that tells results apart, and the warnings; "raised ..." if it was refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = run(*pairs)
        except Exception as e:  # noqa: BLE001 - any refusal is an answer
            return f"raised {type(e).__name__}: {str(e)[:160]}", []
    plain = dataclasses.asdict(made) if dataclasses.is_dataclass(made) and not isinstance(made, type) else made
    text = json.dumps(plain, sort_keys=True, default=repr) if isinstance(plain, (dict, list)) else repr(plain)
    return text, [
        str(w.message) for w in caught if issubclass(w.category, (DeprecationWarning, FutureWarning, UserWarning))
    ]


def _judge_all(entry: dict[str, Any], root: str, values: list[Any]) -> tuple[str, str]:
    """The worst of the ways; one that lacks what another has is a surface without the alias."""
    found: dict[str, tuple[str, str]] = {}
    for way in entry["ways"]:
        taken: list[Any] = []
        found[way] = _judge(_run(entry, way, root), entry, values, taken)
        values = values if found[way][0] else taken  # ways of one name take the same values
    bad = {way: verdict for way, verdict in found.items() if verdict[0]}
    if not bad:
        return "", "the old spelling gives what the new one gives"
    way, (rule, why) = next(((w, v) for w, v in bad.items() if v[0] != "unknown"), next(iter(bad.items())))
    if len(found) == 1:
        return rule, why
    name = way.rpartition(":")[2]
    good = [w.rpartition(":")[2] for w in found if w not in bad]
    if good and rule == "DP001":
        return "DP008", f"{name} lacks the old name, {' and '.join(good)} has it: {why}"
    return rule, f"{name}: {why}"


def _judge(  # noqa: PLR0911 - verdicts
    run: Run, entry: dict[str, Any], values: list[Any], taken: list[Any]
) -> tuple[str, str]:
    """What one way makes of both spellings; `taken` gets the values that it takes."""
    old, new, table = entry["old"], entry["new"], entry["map"]
    base, _ = _load(run)
    if base.startswith("raised"):
        return "unknown", f"the loader refuses an empty config ({base[7:]})"
    for value in values:
        mapped = table.get("null" if value is None else str(value).lower(), value)
        wanted, _ = _load(run, (new, mapped))
        if wanted.startswith("raised"):
            continue
        taken.append(value)
        got, warned = _load(run, (old, value))
        if got.startswith("raised"):
            return "DP001", f"{old}: {value!r} is refused ({got[7:]})"
        if got != wanted:
            lost = got == base and wanted != base
            return ("DP005" if lost and value else "DP004"), f"{old}: {value!r} is not what {new}: {mapped!r} gives"
        named = [w for w in warned if _last(old) in w and _last(new) in w]
        if len(named) != 1:
            return "DP006", f"{old} gives {len(named)} warnings that name both spellings, one is due"
    if not taken:
        return "unknown", f"the loader takes none of the trial values for {new}"
    both, _ = _load(run, (old, True), (new, False))
    if not both.startswith("raised"):
        return "DP007", f"{old} and {new} with different values are accepted together"
    return "", "the old spelling gives what the new one gives"


def _last(name: str) -> str:
    return name.rpartition(".")[2].lstrip("-")


def _function(place: str, root: str) -> Callable[..., Any]:
    """`module:function` or `path/file.py:function`."""
    home, _, name = place.rpartition(":")
    if not home.endswith(".py"):
        return getattr(importlib.import_module(home), name)  # type: ignore[no-any-return]
    return getattr(_module(Path(root) / home), name)  # type: ignore[no-any-return]


@functools.cache
def _module(path: Path) -> Any:
    """A module from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _run(entry: dict[str, Any], way: str, root: str) -> Run:
    """What takes the names of an entry: with their owner, if it has one; recipe keys nested, others as they are."""
    function = _function(way, root)
    if entry["owner"]:
        return lambda *pairs: function(entry["owner"], dict(pairs))
    if entry["surface"] == "checkpoint":
        return lambda *pairs: function(dict(pairs))
    return lambda *pairs: function(_nested(*pairs))


def main() -> None:
    """Answer the request in the argument."""
    request = json.loads(sys.argv[1])
    root = request["root"]
    gc.set_threshold(100_000)  # a short life among many objects that stay
    recorder = _module(Path(__file__).with_name("files_read.py")).Recorder()
    sys.path.insert(0, root)
    _module(Path(__file__).with_name("child.py")).stub_heavy_modules()
    with tempfile.TemporaryDirectory(prefix="moeframe-compat-") as folder:
        tempfile.tempdir = folder
        answers = {e["label"]: _judge_all(e, root, request["values"]) for e in request["entries"]}
        found = {"answers": answers, "read": recorder.read(apart_from=Path(folder))}
    sys.stdout.write("\n@answers " + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
