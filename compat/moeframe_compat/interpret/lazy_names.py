"""What a module's `__getattr__` gives for a name, found out by asking it."""

from __future__ import annotations

import ast
from typing import Any

from moeframe_compat.index.lookup import Found
from moeframe_compat.interpret.trials import Trials
from moeframe_compat.interpret.values import ClassValue, FunctionValue
from moeframe_compat.model.objects import Attribute


def answer(trials: Trials, path: str, found: Found | None) -> Found | None:
    """What stands behind a path that its module's `__getattr__` seems to know; None if it refuses it."""
    lazy = found is not None and isinstance(found.obj, Attribute) and found.obj.value is None and found.path == path
    home, _, name = path.rpartition(".")
    module = trials.index.modules.get(home)
    getter = module.members.get("__getattr__") if module is not None else None
    if not lazy or module is None or getter is None or name not in module.lazy or name in module.members:
        return found
    machine = trials.machine()
    given: list[Any] = []

    def ask() -> None:
        asked = machine.found_value(Found(f"{home}.__getattr__", home, getter))
        given.append(machine.call(asked, [name], {}))

    outcome = trials.run(machine, ask)
    if outcome.refused:
        return None
    value = given[0] if given else None
    if isinstance(value, ClassValue):
        return trials.index.find(value.path) or found
    if isinstance(value, FunctionValue) and isinstance(value.node, ast.FunctionDef):
        return trials.index.find(f"{value.scope.module}.{value.node.name}") or found
    if given and isinstance(value, (bool, int, float, str)):
        return Found(path, home, Attribute(name, getter.line, repr(value)))
    return found
