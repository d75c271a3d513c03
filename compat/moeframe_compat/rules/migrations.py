"""CF014: functions that bring old configs up to date, run on small ones."""

from __future__ import annotations

import re
from typing import Any

from moeframe_compat.index.classes import fields
from moeframe_compat.index.lookup import Found
from moeframe_compat.interpret.trials import Trials
from moeframe_compat.model.objects import Class, Function
from moeframe_compat.rules.config import is_schema_number
from moeframe_compat.rules.context import Context

_NAMES = re.compile(r"(^|_)(migrate|upgrade|update_config|convert)(_|$)|(^|_)from_v\d|v\d+_to_v\d")
_LOOKUPS = ("KeyError", "AttributeError", "TypeError", "IndexError")
_MOST = 12
_MAPPING = re.compile(r"dict|mapping|any", re.IGNORECASE)


def check_migrations(ctx: Context) -> None:
    """Migrations of the new release that take one mapping."""
    sources = ctx.new.snapshot.sources
    found = [
        (Found(f"{path}.{name}", path, m), module.file)
        for path, module in sorted(ctx.new.modules.items())
        for name, m in module.members.items()
        if isinstance(m, Function) and _NAMES.search(name) and _takes_a_mapping(m)
    ]
    if sources is None:
        if found:
            ctx.skipped.add("CF014")
        return
    keys = _keys(ctx)
    if keys:
        trials = Trials(ctx.new, sources)
        for migration, file in found:
            _Migration(ctx, trials, migration, file).check(keys)


def _takes_a_mapping(function: Function) -> bool:
    needed = [p for p in function.params if p.required]
    return len(needed) == 1 and needed[0].positional and bool(_MAPPING.search(needed[0].annotation or "any"))


def _keys(ctx: Context) -> dict[str, bool]:
    """Keys of old configs, and whether the new release has them too."""
    out: dict[str, bool] = {}
    for path in sorted(ctx.config_paths):
        old, new = ctx.old.find(path), ctx.new.find(path)
        if old is None:
            continue
        now = {f.name for f in fields(ctx.new, new)} if new is not None and isinstance(new.obj, Class) else set()
        out |= {f.name: f.name in now for f in fields(ctx.old, old) if not is_schema_number(f.name)}
    return dict(list(out.items())[:_MOST])


class _Migration:
    """One migration, run on configs that set a key or two."""

    def __init__(self, ctx: Context, trials: Trials, found: Found, file: str) -> None:
        self.ctx, self.trials, self.found, self.file = ctx, trials, found, file

    def check(self, keys: dict[str, bool]) -> None:
        """Report what is wrong with it first."""
        if self.run(dict.fromkeys(keys, 7919))[0] != "returned" or self._partial(keys):
            return
        _, nothing = self.run({})
        for key, kept in keys.items():
            ended, result = self.run({key: 7919})
            if ended != "returned":
                continue
            if kept and result == nothing:
                self._report(f"({key})", key, f"{key} is lost on the way", f"carry {key} over")
            again, twice = self.run(result)
            if again and (again != "returned" or twice != result):
                end = "is changed again" if again == "returned" else f"raises {again}"
                why = f"a config that sets {key} {end} when it is migrated twice"
                self._report("", "", why, "test for the old keys before changing anything")
                return

    def run(self, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """How a run ended, and the config it gave; an empty status if nobody can tell."""
        machine = self.trials.machine()
        given = dict(config)
        made: list[Any] = []

        def migrate() -> None:  # finding the function may run its module's decorators
            made.append(machine.call(machine.found_value(self.found), [given], {}))

        outcome = self.trials.run(machine, migrate)
        if outcome.refused:
            return outcome.status.removeprefix("raised "), {}
        if outcome.status != "returned":
            return "", {}
        result = given if made[0] is None else made[0]
        return ("returned", result) if isinstance(result, dict) else ("", {})

    def _partial(self, keys: dict[str, bool]) -> bool:
        """Does it need keys that a config may leave out?"""
        for config in ({}, *({k: 7919} for k in keys)):
            ended, _ = self.run(config)
            if ended in _LOOKUPS:
                why = f"a config that sets {', '.join(config) or 'nothing'} raises {ended}"
                self._report("", "", why, "test for presence: configs leave keys out")
                return True
        return False

    def _report(self, what: str, old: str, why: str, fix: str) -> None:
        self.ctx.emit(
            "CF014",
            f"{self.found.path}{what}",
            old=old,
            at=self.ctx.new_place(self.found),
            was=(self.file, 1),
            why=why,
            fix=fix,
        )
