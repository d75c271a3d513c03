"""DP011: documents, examples and error texts of the new release that still use an old name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from moeframe_compat.model.objects import Class
from moeframe_compat.policy.ledger import Change
from moeframe_compat.rules.context import Context, Place
from moeframe_compat.rules.protocols import functions_of

_ABOUT_RENAMES = re.compile(
    r"(changelog|changes|history|news|release|migrat|renam|upgrad|breaking|deprecat)[^/]*$", re.IGNORECASE
)
_TELLS = re.compile(
    r"renam|deprecat|old name|until|remov|was called|formerly|migrat|no longer|instead|replac", re.IGNORECASE
)
_RENAME = re.compile(r"^rename:(\w+)->(\w+)$")
_FAMILIES = {
    "PY001": "name",
    "PY102": "keyword",
    "CF001": "key",
    "CF002": "key",
    "CF003": "key",
    "CL001": "option",
    "CL007": "command",
    "EN001": "variable",
}


@dataclass(frozen=True, slots=True)
class _Old:
    """An old name: how it looks in a text, and what it is called now."""

    symbol: str
    name: str
    new: str
    pattern: re.Pattern[str]


def check_documents(ctx: Context, ledger: list[Change]) -> None:
    """Old names of the ledger, and of what the rules found gone or renamed."""
    names = {old.symbol: old for old in (*_declared(ledger), *_found(ctx))}
    for old in names.values():
        place = _document(ctx, old) or _error_text(ctx, old)
        if place is not None:
            ctx.emit(
                "DP011",
                old.symbol,
                old=old.name,
                new=old.new,
                at=place,
                why=f"{place[0]} says {old.name}: who copies it uses what is old or gone",
                fix=f"write {old.new}" if old.new else f"take {old.name} out",
            )


def _declared(ledger: list[Change]) -> Iterator[_Old]:
    kinds = {"config": "key", "recipe": "key", "cli": "option", "environment": "variable"}
    for c in ledger:
        if c.kind != "default":
            kind = kinds.get(c.surface, "keyword" if "(" in c.old else "name")
            yield _old(f"{c.surface}:{c.old}", c.old, c.name, c.new_name if c.new else "", kind)


def _found(ctx: Context) -> Iterator[_Old]:
    for f in ctx.findings:
        kind = _FAMILIES.get(f.rule, "")
        inner = re.search(r"\((\w+)\)$", f.symbol)
        name = inner[1] if inner else re.split(r"[.: ]", f.symbol)[-1]
        rename = _RENAME.match(f.cause)
        if kind and f.breaking and len(name) > 2:
            yield _old(f.symbol, f.symbol, name, rename[2] if rename else f.new.rpartition(".")[2], kind)


def _old(symbol: str, full: str, name: str, new: str, kind: str) -> _Old:
    """Only spellings that mean this name: a key with its section or as a line of YAML, a parameter with its `=`."""
    word = re.escape(name)
    dashed = re.escape(name.replace("_", "-").lstrip("-"))
    patterns = {
        "key": rf"(?<![\w.]){re.escape(full)}(?!\w)|^\s*(- )?{word}\s*:(?!:)",
        "keyword": rf"(?<![\w.]){word}\s*=(?!=)",
        "name": rf"(?<!\w){word}(?=\(|`)|import [\w, ]*\b{word}\b",
        "option": rf"(?<![\w-])--{dashed}(?![\w-])",
        "variable": rf"(?<!\w){word}(?!\w)",
        "command": rf"(?<![\w-]){dashed}(?= -|`)",
    }
    return _Old(symbol, name, new, re.compile(patterns[kind]))


def _document(ctx: Context, old: _Old) -> Place | None:
    documents = ctx.new.snapshot.documents
    for file in documents or ():
        if _ABOUT_RENAMES.search(file):
            continue
        text = documents.text(file) if documents is not None else None
        if text is None or (old.name not in text and old.name.replace("_", "-") not in text):
            continue
        for number, line in enumerate(text.splitlines(), 1):
            told = _TELLS.search(line) or (old.new and re.search(rf"\b{re.escape(old.new)}\b", line))
            if old.pattern.search(line) and not told:
                return file, number
    return None


def _error_text(ctx: Context, old: _Old) -> Place | None:
    """An exception that names the old spelling alone."""
    for module in ctx.new.modules.values():
        for function in functions_of([m for m in module.members.values() if not isinstance(m, Class)]):
            for r in function.body.raises:
                if old.pattern.search(r.args) and not _TELLS.search(r.args) and not (old.new and old.new in r.args):
                    return module.file, function.line
    return None
