"""DP004, DP005: deprecated functions and classes that forward to their successor must still do what they did.

Both releases are run on the same trial values. Only a difference between two fully known results counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moeframe_compat.index.classes import constructor
from moeframe_compat.index.lookup import Found
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.interpret.trials import Outcome, Trials
from moeframe_compat.interpret.values import Instance, key
from moeframe_compat.model.objects import Class, Function, Param

if TYPE_CHECKING:
    from moeframe_compat.rules.context import Context

_PRIMES = (7, 11, 13, 17, 19, 23, 29, 31)


class Forwarding:
    """Compares a deprecated object with what it was."""

    def __init__(self, ctx: Context, shims: Shims) -> None:
        self.ctx = ctx
        sources = ctx.old.snapshot.sources
        self.new = shims.trials
        self.owners = ("", "")
        self.old = Trials(ctx.old, sources) if sources is not None and self.new is not None else None

    def check(self, path: str, old: Found, new: Found, owners: tuple[str, str] = ("", "")) -> None:
        """Report arguments that a deprecated object now ignores or mixes up.

        Args:
            path: How reports call it.
            old: A function, class or method.
            new: Its counterpart.
            owners: The classes of a method, before and now.
        """
        self.owners = owners
        if self.old is None or self.new is None or not _announces(new) or _announces(old):
            return
        before, now = self._params(old, new=False), self._params(new, new=True)
        names = [p.name for p in before if p.positional]
        if not names or len(names) > len(_PRIMES) or any(p.required and not p.positional for p in before):
            return
        for changed in (None, *names):
            values = dict(zip(names, _PRIMES, strict=False))
            if changed is not None:
                values[changed] = 97
            given = list(values.values())
            a, b = self._run(self.old, old, given), self._run(self.new, new, given, warned=True)
            if a is None or b is None or a == b:
                continue
            ignored = self._ignored(old, new, names)
            rule, name = ("DP005", ignored) if ignored else ("DP004", "")
            symbol = (
                path if not name else f"{path}.__init__({name})" if isinstance(old.obj, Class) else f"{path}({name})"
            )
            if name and name not in {p.name for p in now if not p.variadic} and not any(p.variadic for p in now):
                return  # its own rule says it
            self.ctx.emit(
                rule,
                symbol,
                old=a,
                new=b,
                at=self.ctx.new_place(new),
                was=self.ctx.old_place(old),
                why=f"it ignores {name}"
                if name
                else f"{path.rpartition('.')[2]}{tuple(values.values())} gave {a}, gives {b}",
                fix="pass every argument on to the successor as it came",
            )
            return

    def _params(self, found: Found, *, new: bool) -> list[Param]:
        index = self.ctx.new if new else self.ctx.old
        if isinstance(found.obj, Function):
            return found.obj.params[1:] if self.owners[0] and found.obj.binding != "static" else found.obj.params
        made = constructor(index, found)
        return made.params if made.known else []

    def _ignored(self, old: Found, new: Found, names: list[str]) -> str:
        """The first parameter whose value no longer matters."""
        assert self.old is not None
        assert self.new is not None
        base = [*_PRIMES[: len(names)]]
        for i, name in enumerate(names):
            other = [*base[:i], 97, *base[i + 1 :]]
            mattered = self._run(self.old, old, base) != self._run(self.old, old, other)
            if mattered and self._run(self.new, new, base) == self._run(self.new, new, other):
                return name
        return ""

    def _run(self, trials: Trials, found: Found, args: list[Any], *, warned: bool = False) -> str | None:
        """The plainly known result of a call, None if there is none, or if it did not warn although it should."""
        machine = trials.machine()
        made: list[Any] = []
        owner = self.owners[trials is self.new]

        def call() -> None:
            asked = machine.found_value(found)
            if owner:
                asked = machine.attribute(Instance(owner), found.path.rpartition(".")[2])
            made.append(machine.call(asked, args, {}))

        outcome: Outcome = trials.run(machine, call)
        if outcome.status != "returned" or machine.trace.effects or (warned and not outcome.warned):
            return None
        value = made[0]
        text = key(getattr(value, "attributes", value))
        return None if "<" in text else text


def _announces(found: Found) -> bool:
    """Does calling it warn that it is deprecated?"""
    obj = found.obj
    made = obj.members.get("__init__") if isinstance(obj, Class) else obj
    return isinstance(made, Function) and bool(made.body.warns)
