"""CL009: exit codes of commands, and the JSON that they print."""

from __future__ import annotations

from moeframe_compat.index.lookup import Index
from moeframe_compat.index.public import is_command
from moeframe_compat.index.values import evaluate, known, show
from moeframe_compat.model.objects import Function
from moeframe_compat.rules.context import Context, Place

_MAINS = ("main", "cli", "run_cli", "entry_point")


def check_outputs(ctx: Context) -> None:
    """Functions of the command line that both releases have."""
    before, now = _commands(ctx.old), _commands(ctx.new)
    for path, (scope, was, old) in before.items():
        if path not in now:
            continue
        new_scope, at, new = now[path]
        for key in old.body.printed:
            if new.body.printed and key not in new.body.printed:
                _report(ctx, path, key, key, "", at, was, f"scripts that read {key!r} from its JSON fail")
        a, b = _codes(ctx.old, scope, old), _codes(ctx.new, new_scope, new)
        lost, fresh = [c for c in a if c not in b], [c for c in b if c not in a]
        if lost and fresh:
            words = ", ".join(map(show, lost)), ", ".join(map(show, fresh))
            _report(
                ctx,
                path,
                "exit",
                f"exit {words[0]}",
                f"exit {words[1]}",
                at,
                was,
                f"scripts that test for exit code {words[0]} fail",
            )


def _report(ctx: Context, path: str, what: str, old: str, new: str, at: Place, was: Place, why: str) -> None:
    ctx.emit(
        "CL009",
        f"cli:{path.rpartition('.')[2].removesuffix('_command').lstrip('_').replace('_', '-')} {what}",
        old=old,
        new=new,
        at=at,
        was=was,
        why=why,
        fix="keep it; add keys or codes beside it",
    )


def _codes(index: Index, scope: str, function: Function) -> list[object]:
    values = [evaluate(index, scope, text) for text in function.body.exits]
    return [v for v in values if known(v)] if all(known(v) for v in values) else []


def _commands(index: Index) -> dict[str, tuple[str, Place, Function]]:
    """Commands of click and typer, and functions that scripts name or that build a parser's program."""
    surfaces = index.snapshot.surfaces
    scripts = {target.replace(":", ".") for target in surfaces.project.scripts.values()}
    files = {o.file for o in surfaces.options} | {c.file for c in surfaces.commands}
    return {
        f"{path}.{name}": (path, (module.file, m.line), m)
        for path, module in index.modules.items()
        for name, m in module.members.items()
        if isinstance(m, Function)
        and (is_command(index, path, m) or f"{path}.{name}" in scripts or (name in _MAINS and module.file in files))
    }
