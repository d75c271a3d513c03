"""Calling functions, constructors and loaders of the new release on trial values, and telling outcomes apart."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.interpret.machine import Machine
from moeframe_compat.interpret.values import (
    BreakError,
    ClassValue,
    ContinueError,
    Instance,
    Opaque,
    RaisedError,
    UndecidedError,
    key,
)
from moeframe_compat.model.objects import Class, Function
from moeframe_compat.model.snapshot import Sources


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a trial ended. Two trials did the same if `status` and `result` are equal; `warned` is told apart."""

    status: str
    result: str
    warned: bool = False

    def same(self, other: Outcome) -> bool:
        """Did both do the same, warnings aside?"""
        return (self.status, self.result) == (other.status, other.result)

    @property
    def decided(self) -> bool:
        """Is it known how the trial ended?"""
        return self.status != "undecided"

    @property
    def refused(self) -> bool:
        """Did it raise?"""
        return self.status.startswith("raised")


class Trials:
    """Runs trials over one release; syntax trees are parsed once."""

    def __init__(self, index: Index, sources: Sources) -> None:
        self.index, self.sources = index, sources
        self.trees: dict[str, ast.Module] = {}

    def machine(self) -> Machine:
        """A fresh machine."""
        return Machine(self.index, self.sources, self.trees)

    def call(self, target: Found, args: list[Any], named: dict[str, Any], watch: tuple[str, ...] = ()) -> Outcome:
        """Call a public object; `watch` names parameters whose value counts when the trial stops half-way."""
        machine = self.machine()
        me: Instance | None = None

        def action() -> Any:
            nonlocal me
            if isinstance(target.obj, Class):
                return machine.call(ClassValue(target.path), args, named)
            owner = self.index.find(target.path.rpartition(".")[0])
            if owner is not None and isinstance(owner.obj, Class) and isinstance(target.obj, Function):
                me = Instance(owner.path)
                return machine.call(machine.attribute(me, target.obj.name), args, named)
            return machine.call(machine.found_value(target), args, named)

        return self.run(machine, action, watch, lambda: "" if me is None else key(me))

    def run(self, machine: Machine, action: Any, watch: tuple[str, ...] = (), after: Any = lambda: "") -> Outcome:
        """Run one action and describe how it ended."""
        try:
            value = action()
        except RaisedError as e:
            return Outcome(f"raised {e.name}", "", bool(machine.trace.warnings))
        except (UndecidedError, RecursionError, BreakError, ContinueError):
            for frame in machine.stopped:
                seen = [f"{w}={key(frame[w])}" for w in watch if w in frame]
                if seen:
                    return Outcome("stopped", "; ".join(seen), bool(machine.trace.warnings))
            return Outcome("undecided", "", bool(machine.trace.warnings))
        result = "; ".join([key(value), after(), *machine.trace.effects])
        return Outcome("returned", result, bool(machine.trace.warnings))


def filler(names: list[str]) -> dict[str, Any]:
    """Unknown arguments for parameters that must be given."""
    return {n: Opaque(f"argument {n}") for n in names}
