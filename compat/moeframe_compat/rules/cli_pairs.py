"""Which new option an old one became, and CL010: whether positional arguments still stand in their order."""

from __future__ import annotations

from collections.abc import Iterable

from moeframe_compat.model.surfaces import CliOption
from moeframe_compat.rules.context import Context


def symbol_of(o: CliOption) -> str:
    """How findings call an option."""
    long = next((f for f in o.flags if f.startswith("--")), o.flags[0])
    return f"cli:{o.parser} {long}" if o.parser else f"cli:{long}"


class Pairs:
    """Old options and the new ones that answer to them: by a flag, the same file first; arguments by their places."""

    def __init__(self, old: list[CliOption], new: list[CliOption]) -> None:
        self._heirs: dict[int, CliOption] = {}
        files = {o.file for o in old} & {n.file for n in new}
        for o in old:
            flags = set(o.flags)
            named = [n for n in new if n.parser == o.parser and n.positional == o.positional and flags & set(n.flags)]
            if named:
                self._heirs[id(o)] = min(named, key=lambda n: (n.file != o.file, -len(flags & set(n.flags))))
        taken = {id(n) for n in self._heirs.values()}
        lost = _grouped((o for o in old if o.positional and id(o) not in self._heirs), files)
        fresh = _grouped((n for n in new if n.positional and id(n) not in taken), files)
        for key, arguments in lost.items():
            heirs = fresh.get(key, [])
            if [(o.type, o.nargs) for o in arguments] == [(n.type, n.nargs) for n in heirs]:
                self._heirs.update(zip(map(id, arguments), heirs, strict=True))
        self._known = {(n.parser, f) for n in self._heirs.values() for f in n.flags}
        self._known |= {(o.parser, f) for o in old for f in o.flags}

    def heir(self, o: CliOption) -> CliOption | None:
        """What a new release has in place of an old option."""
        return self._heirs.get(id(o))

    def known(self, n: CliOption) -> bool:
        """Did the old release have it, by whatever name?"""
        return any((n.parser, flag) in self._known for flag in n.flags)


def _grouped(options: Iterable[CliOption], files: set[str]) -> dict[tuple[str, str], list[CliOption]]:
    out: dict[tuple[str, str], list[CliOption]] = {}
    for o in options:
        out.setdefault((o.parser, o.file if o.file in files else ""), []).append(o)
    return out


def check_order(ctx: Context, old: list[CliOption], new: list[CliOption]) -> None:
    """CL010, where one function of each release adds the arguments of one parser."""
    before, now = _scopes(old), _scopes(new)
    claimed = {_place(found) for found in before}
    known = {(o.parser, o.flags[0]) for o in old if o.positional}
    for arguments in before:
        same = [found for found in now if _place(found) == _place(arguments)]
        if not same:
            free = [found for found in now if _place(found) not in claimed and _common(arguments, found)]
            same = free if len(free) == 1 else []
        verdicts = [verdict for found in same if (verdict := _verdict(arguments, found, known)) is not None]
        if verdicts and len(verdicts) == len(same):
            _report(ctx, *verdicts[0])


def _scopes(options: list[CliOption]) -> list[list[CliOption]]:
    """Arguments by where they are added, in their order; not where one name comes twice, as in two branches."""
    out: dict[str, list[CliOption]] = {}
    for o in options:
        if o.positional and o.scope:
            out.setdefault(o.scope, []).append(o)
    return [found for found in out.values() if len({o.flags[0] for o in found}) == len(found)]


def _place(arguments: list[CliOption]) -> tuple[str, str, str]:
    """Parser, file and function."""
    first = arguments[0]
    return first.parser, first.file, first.scope.rpartition("@")[2]


def _common(old: list[CliOption], new: list[CliOption]) -> list[CliOption]:
    """Old arguments that are among the new ones of the same parser, in their new order."""
    named = {o.flags[0]: o for o in old}
    return [named[n.flags[0]] for n in new if n.parser == old[0].parser and n.flags[0] in named]


def _verdict(
    old: list[CliOption], new: list[CliOption], known: set[tuple[str, str]]
) -> tuple[CliOption, CliOption, str, str] | None:
    """An old argument that gets other values, the new one that gets its own, the old order and the new one.

    `known`: parsers and names of all old arguments, wherever they were added.
    """
    common = _common(old, new)
    kept = [o for o in old if o in common]
    fresh = {n.flags[0]: n for n in new}
    was, now = ", ".join(o.flags[0] for o in kept), ", ".join(fresh)
    moved = [o for o, p in zip(kept, common, strict=True) if o is not p]
    if moved:
        return moved[0], fresh[moved[0].flags[0]], was, now
    if len(kept) < len(old):
        return None  # what is new may stand for what is gone
    for i, n in enumerate(new):
        if (n.parser, n.flags[0]) in known or n.required or n.nargs == "-1":
            continue
        behind = [o for o in old if o.flags[0] in {m.flags[0] for m in new[i + 1 :]}]
        if n.nargs in ("?", "*"):  # argparse first gives their values to those that must have one
            behind = [o for o in behind if o.nargs in ("?", "*", "+")]
        if behind:
            return behind[0], n, was, now
    return None


def _report(ctx: Context, o: CliOption, n: CliOption, was: str, now: str) -> None:
    ctx.emit(
        "CL010",
        symbol_of(o),
        old=was,
        new=now,
        at=(n.file, n.line),
        was=(o.file, o.line),
        why=f"values that commands give for {was} are now taken for {now}, in this order",
        fix=f"keep the order {was}; add new arguments at the end, or as options",
    )
