"""Runs in a process of its own: loads configs in the old and the new spelling. Standard library only."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

Loader = Callable[[dict[str, Any]], Any]


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


def _load(loader: Loader, config: dict[str, Any]) -> tuple[str, list[str]]:
    """The resolved config as a text that tells configs apart, and the warnings; "raised ..." if it was refused."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = loader(config)
        except Exception as e:  # noqa: BLE001 - any refusal is an answer
            return f"raised {type(e).__name__}", []
    plain = dataclasses.asdict(made) if dataclasses.is_dataclass(made) and not isinstance(made, type) else made
    text = json.dumps(plain, sort_keys=True, default=repr) if isinstance(plain, (dict, list)) else repr(plain)
    return text, [
        str(w.message) for w in caught if issubclass(w.category, (DeprecationWarning, FutureWarning, UserWarning))
    ]


def _judge(loader: Loader, entry: dict[str, Any], values: list[Any]) -> tuple[str, str]:  # noqa: PLR0911 - verdicts
    old, new, table = entry["old"], entry["new"], entry["map"]
    base, _ = _load(loader, {})
    if base.startswith("raised"):
        return "unknown", f"the loader refuses an empty config ({base})"
    tried = False
    for value in values:
        mapped = table.get(str(value).lower(), value)
        wanted, _ = _load(loader, _nested((new, mapped)))
        if wanted.startswith("raised"):
            continue
        tried = True
        got, warned = _load(loader, _nested((old, value)))
        if got.startswith("raised"):
            return "DP001", f"{old}: {value!r} is refused ({got[7:]})"
        if got != wanted:
            lost = got == base and wanted != base
            return ("DP005" if lost and value else "DP004"), f"{old}: {value!r} is not what {new}: {mapped!r} gives"
        named = [w for w in warned if old.rpartition(".")[2] in w and new.rpartition(".")[2] in w]
        if len(named) != 1:
            return "DP006", f"{old} gives {len(named)} warnings that name both spellings, one is due"
    if not tried:
        return "unknown", f"the loader takes none of the trial values for {new}"
    both, _ = _load(loader, _nested((old, True), (new, False)))
    if not both.startswith("raised"):
        return "DP007", f"{old} and {new} with different values are accepted together"
    return "", "the old spelling gives what the new one gives"


def main() -> None:
    """Answer the request on standard input."""
    request = json.loads(sys.stdin.read())
    sys.path.insert(0, request["root"])
    module, _, name = request["loader"].partition(":")
    loader = getattr(importlib.import_module(module), name)
    answers = {e["label"]: _judge(loader, e, request["values"]) for e in request["entries"]}
    sys.stdout.write("\n@answers " + json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
