"""Whether a class still takes an old key of saved state: DP004 and DP005 for `load_state_dict` and its hooks."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from moeframe_compat.index.lookup import Found, Index
from moeframe_compat.interpret.trials import Trials
from moeframe_compat.interpret.values import Instance
from moeframe_compat.model.objects import Class, Function

if TYPE_CHECKING:
    from moeframe_compat.rules.context import Context

_LOADERS = ("load_state_dict", "_load_from_state_dict", "__setstate__", "sharded_state_dict", "load_from_checkpoint")
_HOOKS = (
    "register_load_state_dict_pre_hook",
    "_register_load_state_dict_pre_hook",
    "register_state_dict_pre_hook",
    "_register_state_dict_hook",
    "_register_load_state_dict_post_hook",
    "register_load_state_dict_post_hook",
)


class SavedState:
    """Answers about what rewrites keys of loaded state in the new release."""

    def __init__(self, ctx: Context, trials: Trials) -> None:
        self.ctx, self.trials = ctx, trials

    def verdict(self, cls: Found, key: str, successor: str, keys: list[str]) -> str:
        """Does a class rewrite an old key of loaded state: none, works, broken (then it is reported)?"""
        hooks = [h for h in _hooks(self.ctx.new, cls) if self._names(cls, h, key)]
        if not hooks:
            return "none"
        target = successor or next((k for k in keys if any(self._names(cls, h, k) for h in hooks)), "")
        for hook in hooks:
            if hook.name == "load_state_dict":
                passed = self._passed_state(cls, hook, key)
                if passed and f"str:{target!r}" not in passed and f"str:{key!r}" in passed:
                    return self._bad_state(cls, key, target, "DP005", f"{key} is left as it is")
                if passed and f"str:{target!r}" not in passed:
                    return self._bad_state(cls, key, target, "DP004", f"{key} does not become {target}")
        return "works"

    def _names(self, cls: Found, hook: Function, key: str) -> bool:
        """Does the source of a method (or its module's tables) contain the key as a string?"""
        tree = self.trials.machine().tree(cls.module)
        if tree is None:
            return False
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name == hook.name and node.lineno == hook.line:
                inner = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                called = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
                near = {
                    n.value
                    for f in ast.walk(tree)
                    if isinstance(f, ast.FunctionDef) and f.name in called
                    for n in ast.walk(f)
                    if isinstance(n, ast.Constant)
                }
                bodies = [tree.body, *(c.body for c in tree.body if isinstance(c, ast.ClassDef))]
                tables = {
                    n.value
                    for body in bodies
                    for s in body
                    if isinstance(s, ast.Assign)
                    for n in ast.walk(s)
                    if isinstance(n, ast.Constant)
                }
                return any(
                    isinstance(v, str) and v.rpartition(".")[2] == key.rpartition(".")[2] for v in inner | near | tables
                )
        return False

    def _passed_state(self, cls: Found, hook: Function, key: str) -> str:
        """What `load_state_dict` hands to its parent for a state that holds the old key; "" if nobody can tell."""
        machine = self.trials.machine()
        machine.opaque_super = True
        found = Found(f"{cls.path}.{hook.name}", cls.module, hook)

        def action() -> Any:
            return machine.call(machine.attribute(Instance(cls.path), found.path.rpartition(".")[2]), [{key: 7919}], {})

        outcome = self.trials.run(machine, action)
        return next((e for e in machine.trace.effects if "super()" in e), "") if outcome.status == "returned" else ""

    def _bad_state(self, cls: Found, key: str, target: str, rule: str, why: str) -> str:
        self.ctx.emit(
            rule,
            f"{cls.path}.{key}",
            old=key,
            new=target,
            at=self.ctx.new_place(cls),
            why=f"load_state_dict is there to rename it, but {why}",
            fix=f"move the value of {key} to {target}",
            audience=("checkpoint", "caller"),
            kind="hard",
        )
        return "broken"


def _hooks(index: Index, cls: Found) -> list[Function]:
    """Methods through which a class rewrites loaded state."""
    out = []
    for c in index.mro(cls):
        if isinstance(c.obj, Class):
            methods = [m for m in c.obj.members.values() if isinstance(m, Function)]
            out += [m for m in methods if m.name in _LOADERS or any(h in m.body.self_calls for h in _HOOKS)]
    return out
