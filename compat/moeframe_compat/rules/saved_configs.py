"""CK003: configs that checkpoints hold, and that loading builds again: `Config(**saved["config"])`."""

from __future__ import annotations

import re

from moeframe_compat.index.classes import constructor
from moeframe_compat.index.lookup import Found
from moeframe_compat.model.objects import Class, Function, Module
from moeframe_compat.rules.context import Context
from moeframe_compat.rules.protocols import functions_of

_LOADS = re.compile(r"load|restore|resume|setstate|from_|open|read")
_SAVED = re.compile(r"checkpoint|ckpt|state|resume|restore|pretrained|saved|snapshot")


def check_saved_configs(ctx: Context) -> None:
    """Classes that a loading function of both releases calls with `**`."""
    for path, module in sorted(ctx.new.modules.items()):
        before = ctx.old.modules.get(path)
        if before is None:
            continue
        old_functions = {f.name: f for f in functions_of(list(before.members.values()))}
        for function in functions_of(list(module.members.values())):
            old = old_functions.get(function.name)
            if old is None or not _reads_checkpoints(module, function):
                continue
            for name in function.body.unpacks:
                if name in old.body.unpacks:
                    _compare(ctx, module, function, ctx.new.name(path, name), ctx.old.name(path, name))


def _reads_checkpoints(module: Module, function: Function) -> bool:
    words = " ".join([module.path.rpartition(".")[2], function.name, *(p.name for p in function.params)])
    return bool(_LOADS.search(function.name) and _SAVED.search(words))


def _compare(ctx: Context, module: Module, function: Function, new: Found | None, old: Found | None) -> None:
    if new is None or old is None or not isinstance(new.obj, Class) or not isinstance(old.obj, Class):
        return
    before, now = constructor(ctx.old, old), constructor(ctx.new, new)
    if not before.known or not now.known or any(p.kind == "vk" for p in now.params):
        return
    names = {p.name for p in now.params}
    sources = ctx.new.snapshot.sources
    text = (sources.text(module.file) or "") if sources is not None else ""
    for p in before.params:
        if p.variadic or p.name in names or re.search(rf"[\"']{re.escape(p.name)}[\"']", text):
            continue  # a key that the module names is one that it may rewrite
        ctx.emit(
            "CK003",
            f"{old.path}.{p.name}",
            old=p.name,
            new="",
            at=(module.file, function.line),
            was=ctx.old_place(old),
            why=f"{function.name}() builds it from what checkpoints hold: {p.name} raises TypeError",
            fix=f"rename or drop {p.name} before the call",
            cause=f"field:{old.path}.{p.name}",
        )
