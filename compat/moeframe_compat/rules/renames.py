"""Which new name is the old one's successor."""

from __future__ import annotations

import difflib

from moeframe_compat.index.lookup import Found
from moeframe_compat.index.public import Entry
from moeframe_compat.model.objects import Attribute, Class, Function, Member, Param
from moeframe_compat.rules.context import Context


def likely_new_name(ctx: Context, entry: Entry) -> str:
    """A public path that is new, of the same kind, in the same module or of the same name, and alike; "" if none."""
    best, score = "", 0.59
    name = entry.path.rpartition(".")[2]
    old_paths = {p for e in ctx.old_surface.values() for p in e.paths}
    for candidate in ctx.new_surface.values():
        if candidate.path in old_paths or type(candidate.found.obj) is not type(entry.found.obj):
            continue
        other = candidate.path.rpartition(".")[2]
        same_home = candidate.found.module == entry.found.module
        if other != name and not same_home:
            continue
        alike = 0.7 if other == name else difflib.SequenceMatcher(None, name, other).ratio() * 0.5
        alike += 0.5 * likeness(entry.found, candidate.found)
        if alike > score:
            best, score = candidate.path, alike
    return best


def likeness(a: Found, b: Found) -> float:
    """How much two objects look like one, from 0 to 1."""
    x, y = a.obj, b.obj
    if isinstance(x, Function) and isinstance(y, Function):
        same = [p.name for p in x.params] == [p.name for p in y.params]
        return (0.6 if same else 0.2 * (len(x.params) == len(y.params))) + 0.4 * (x.body.calls == y.body.calls)
    if isinstance(x, Class) and isinstance(y, Class):
        mine, theirs = set(x.members), set(y.members)
        return 1.0 if not mine | theirs else len(mine & theirs) / len(mine | theirs)
    if isinstance(x, Attribute) and isinstance(y, Attribute):
        return 1.0 if x.value == y.value and x.annotation == y.annotation else 0.0
    return 0.0


def moved_module(ctx: Context, path: str) -> str:
    """A new module that holds at least half of what the old one held; "" if none."""
    wanted = {n for n, m in ctx.old.modules[path].members.items() if isinstance(m, (Class, Function))}
    best, score = "", 0.49
    for other, module in sorted(ctx.new.modules.items()):
        if other in ctx.old.modules or not wanted:
            continue
        have = {n for n, m in module.members.items() if isinstance(m, (Class, Function))}
        share = len(wanted & have) / len(wanted)
        if share > score:
            best, score = other, share
    return best


def pair_params(old: list[Param], new: list[Param]) -> dict[str, str]:
    """Renamed parameters: of those that got lost, which new ones stand in their place."""
    old_names, new_names = {p.name for p in old}, {p.name for p in new}
    lost = [p for p in old if p.name not in new_names and not p.variadic]
    gained = [p for p in new if p.name not in old_names and not p.variadic]
    out: dict[str, str] = {}
    for p in lost:
        candidates = [q for q in gained if q.name not in out.values()]
        place = _place(old, p, new_names)
        score = {
            q.name: _alike(p, q) + (0.5 if _place(new, q, old_names) == place and p.positional else 0.0)
            for q in candidates
        }
        best = max(candidates, key=lambda q: score[q.name], default=None)
        if best is not None and score[best.name] >= 0.9 and not (best.default is None and p.default is not None):
            out[p.name] = best.name
    return out


def _place(params: list[Param], p: Param, common: set[str]) -> str:
    """The nearest earlier parameter that both signatures have."""
    before = [q.name for q in params[: params.index(p)] if q.name in common]
    return before[-1] if before else ""


def _alike(p: Param, q: Param) -> float:
    same_kind = (p.kind == q.kind) or {p.kind, q.kind} <= {"pk", "ko"}
    value = 0.0 if not same_kind else 0.2
    value += 0.3 if (p.default is None) == (q.default is None) else 0.0
    value += 0.1 if p.default == q.default else 0.0
    value += 0.2 if p.annotation == q.annotation else 0.0
    return value + 0.4 * difflib.SequenceMatcher(None, p.name, q.name).ratio()


def likely_member(removed: Member, members: dict[str, Member], old: dict[str, Member]) -> str:
    """A member that is new and alike; "" if none."""
    best, score = "", 0.6
    for name, m in members.items():
        if name in old or type(m) is not type(removed) or name.startswith("_") != removed.name.startswith("_"):
            continue
        alike = 0.5 * likeness(Found("", "", removed), Found("", "", m))
        alike += 0.5 * difflib.SequenceMatcher(None, name, removed.name).ratio()
        if alike > score:
            best, score = name, alike
    return best
