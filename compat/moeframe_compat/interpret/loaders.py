"""Whether a config loader of the new release still takes an old key, found out by running it on small configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moeframe_compat.index.lookup import Found
from moeframe_compat.interpret.trials import Outcome, Trials
from moeframe_compat.interpret.values import ClassValue
from moeframe_compat.model.objects import Class, Function

if TYPE_CHECKING:
    from moeframe_compat.rules.context import Context

_WORDS = (
    "load",
    "from_dict",
    "from_yaml",
    "from_config",
    "parse",
    "compose",
    "read",
    "build",
    "make",
    "create",
    "resolve",
)
_VALUES: tuple[Any, ...] = (True, False, 0, 7)
_UNKNOWN = "no_such_key_anywhere"


class Loaders:
    """The loaders of a release."""

    def __init__(self, ctx: Context, trials: Trials) -> None:
        self.ctx, self.trials = ctx, trials

    def verdict(self, key: str, successor: str, path: str) -> str:
        """none, works, or broken (and reported) for an old key of the config class at `path`."""
        if not self._mentioned(key):
            return "none"
        unsure = False
        for loader, bound in self._loaders(path):
            empty, stray = self._load(loader, bound, {}), self._load(loader, bound, {_UNKNOWN: 7})
            old = {v: self._load(loader, bound, {key: v}) for v in _VALUES}
            if not empty.decided or any(not o.decided for o in old.values()):
                unsure = True
                continue
            if empty.refused or all(o.refused for o in old.values()):
                continue
            if not stray.refused and all(o.same(stray) for o in old.values()):
                continue  # it takes anything
            return self._judge(key, successor, path, loader, empty, old, bound)
        return "works" if unsure or self._table(key, successor) else "none"

    def _judge(
        self, key: str, successor: str, path: str, loader: Found, empty: Outcome, old: dict[Any, Outcome], bound: str
    ) -> str:
        if all(o.same(empty) for o in old.values()):
            return self._broken("DP005", key, successor, path, loader, f"{key} is accepted and ignored")
        if successor and _negated(key, successor) and self._turned(loader, bound, successor, old):
            return "works"
        if successor:
            for v, o in old.items():
                expected = self._load(loader, bound, {successor: v})
                if expected.refused or o.same(expected):
                    continue
                if o.same(empty):
                    return self._broken("DP004", key, successor, path, loader, f"{key}: {v!r} is dropped")
                others = [
                    w
                    for w in _VALUES
                    if type(w) is type(v) and w != v and o.same(self._load(loader, bound, {successor: w}))
                ]
                if others and not _negated(key, successor):
                    return self._broken(
                        "DP004", key, successor, path, loader, f"{key}: {v!r} becomes {successor}: {others[0]!r}"
                    )
        elif any(o.same(empty) for v, o in old.items() if not v) and self._default_differs(old):
            return "works"
        return "works"

    def _turned(self, loader: Found, bound: str, successor: str, old: dict[Any, Outcome]) -> bool:
        """Does the old key's true mean the new one's false, and the other way round?"""
        return all(o.same(self._load(loader, bound, {successor: not v})) for v, o in old.items() if isinstance(v, bool))

    @staticmethod
    def _default_differs(old: dict[Any, Outcome]) -> bool:
        return len({o.result for o in old.values()}) > 1

    def _broken(self, rule: str, key: str, successor: str, path: str, loader: Found, why: str) -> str:
        self.ctx.emit(
            rule,
            f"{path}.{key}",
            old=key,
            new=successor,
            at=self.ctx.new_place(loader),
            why=f"{loader.path.rpartition('.')[2]}() migrates it, but {why}",
            fix="carry every given value over, false, null and 0 too: test for presence, not for truth",
            audience=("recipe",),
            cause=f"shim:{key}->{successor}",
        )
        return "broken"

    def _load(self, loader: Found, bound: str, config: dict[str, Any]) -> Outcome:
        machine = self.trials.machine()

        def action() -> Any:
            if bound:
                assert isinstance(loader.obj, Function)
                return machine.call(machine.attribute(ClassValue(bound), loader.obj.name), [dict(config)], {})
            return machine.call(machine.found_value(loader), [dict(config)], {})

        return self.trials.run(machine, action)

    def _loaders(self, path: str) -> list[tuple[Found, str]]:
        """Functions that may turn a mapping into this config: by name, in modules that know the class."""
        name = path.rpartition(".")[2]
        out: list[tuple[Found, str]] = []
        for module_path, module in sorted(self.ctx.new.modules.items()):
            if name not in module.members and name not in module.imports:
                continue
            for n, m in module.members.items():
                if isinstance(m, Function) and any(w in n for w in _WORDS) and m.params:
                    out.append((Found(f"{module_path}.{n}", module_path, m), ""))
                if isinstance(m, Class) and n == name:
                    out += [
                        (Found(f"{module_path}.{n}.{k}", module_path, f), f"{module_path}.{n}")
                        for k, f in m.members.items()
                        if isinstance(f, Function) and f.binding == "class" and any(w in k for w in _WORDS)
                    ]
        return out

    def _mentioned(self, key: str) -> bool:
        """Is the key a string anywhere in the new release?"""
        return self.trials.sources.mention(key)

    def _table(self, key: str, successor: str) -> bool:
        """Without a loader that can be run: does the release name both, as a table of renames does?"""
        return bool(successor) and self._mentioned(key) and self._mentioned(successor) and not self._loaders_any()

    def _loaders_any(self) -> list[str]:
        return [
            n
            for m in self.ctx.new.modules.values()
            for n, f in m.members.items()
            if isinstance(f, Function) and any(w in n for w in _WORDS[:4])
        ]


def _negated(old: str, new: str) -> bool:
    words = ("disable", "no", "not", "without", "skip")
    return any(w in words for w in old.split("_")) != any(w in words for w in new.split("_"))
