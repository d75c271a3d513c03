"""DP004-DP007: whether what is meant to keep old code working does so, found out by running it on trial values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeframe_compat.index.lookup import Found
from moeframe_compat.index.values import Symbol
from moeframe_compat.interpret.lazy_names import answer
from moeframe_compat.interpret.loaders import Loaders
from moeframe_compat.interpret.saved_state import SavedState
from moeframe_compat.interpret.trials import Outcome, Trials, filler
from moeframe_compat.model.objects import Class, Function, Param

if TYPE_CHECKING:
    from moeframe_compat.rules.context import Context
    from moeframe_compat.rules.params import Call

_NEGATIONS = ("disable", "no", "not", "without", "skip", "exclude", "ignore", "off")
_TRUTHY: tuple[Any, ...] = (True, 7, "trial")
_FALSY: tuple[Any, ...] = (False, 0)


@dataclass(slots=True)
class Verdict:
    """What became of one old parameter."""

    rule: str
    why: str
    fix: str


class Shims:
    """Answers about shims of the new release; without its sources (a snapshot) it knows of none and says so."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        sources = ctx.new.snapshot.sources
        self.trials = Trials(ctx.new, sources) if sources is not None else None
        if self.trials is None:
            ctx.skipped |= {"DP004", "DP005", "DP006", "DP007"}
        self.loaders = Loaders(ctx, self.trials) if self.trials is not None else None
        self.saved = SavedState(ctx, self.trials) if self.trials is not None else None
        self._aliases: dict[tuple[str, str], str] = {}

    def covers(self, call: Call, p: Param, successor: str) -> bool:
        """Does something still take an old parameter that left the signature? Reports it if it does so wrongly."""
        if call.target is None or not self._mentioned(call, p.name):
            return False
        if self.trials is None:
            return True
        fresh = (
            [successor]
            if successor
            else [q.name for q in call.new if not q.variadic and q.name not in {o.name for o in call.old}]
        )
        base = self._try(call, {}, fresh)
        outcomes = {v: self._try(call, {p.name: v}, fresh) for v in self._values(p)}
        if all(o.refused for o in outcomes.values()) and not base.refused:
            return False
        heir = self._heir(call, outcomes, fresh) or (fresh[0] if len(fresh) == 1 else "")
        self._judge(call, p, heir, base, outcomes)
        return True

    def _mentioned(self, call: Call, name: str) -> bool:
        """Does the new callable name the old parameter: in its body, or in one of its decorators?"""
        if call.new_body is not None and name in call.new_body.reads:
            return True
        obj = call.target.obj if call.target is not None else None
        made = obj.members.get("__init__") if isinstance(obj, Class) else obj
        decorators = [
            *(made.decorators if isinstance(made, Function) else []),
            *(obj.decorators if isinstance(obj, Class) else []),
        ]
        if any(f"'{name}'" in d.text or f'"{name}"' in d.text or f"{name}=" in d.text for d in decorators):
            return True
        home = call.target.module if call.target is not None else ""
        declared = name in self.ctx.options.declared
        for d in decorators:
            maker = self.ctx.new.name(home, d.path.removeprefix(f"{home}."))
            wraps = maker is not None and isinstance(maker.obj, Function) and maker.obj.wraps is not None
            if wraps and maker is not None and (declared or self._quoted(maker.module, name)):
                return True
        if declared and any(q.kind == "vk" for q in call.new):
            return True
        return (
            call.new_body is not None
            and call.new_body.forwards
            and any(q.kind == "vk" for q in call.new)
            and self._in_module(call, name)
        )

    def _in_module(self, call: Call, name: str) -> bool:
        """Is the name a string somewhere in the module of the new callable (a table of renames)?"""
        return call.target is not None and self._quoted(call.target.module, name)

    def _quoted(self, path: str, name: str) -> bool:
        module = self.ctx.new.modules.get(path)
        text = self.ctx.new.snapshot.sources.text(module.file) if module and self.ctx.new.snapshot.sources else None
        return text is not None and (f"'{name}'" in text or f'"{name}"' in text)

    def _try(self, call: Call, named: dict[str, Any], watch: list[str]) -> Outcome:
        assert self.trials is not None
        assert call.target is not None
        needed = filler([q.name for q in call.new if q.required and q.name not in named and q.kind != "po"])
        return self.trials.call(call.target, [], needed | named, tuple(watch))

    def _values(self, p: Param) -> tuple[Any, ...]:
        """Trial values of the kind an old parameter took."""
        default, annotation = p.default or "", p.annotation or ""
        if default in ("True", "False") or annotation == "bool":
            return (True, False, 7)
        if default.lstrip("-").isdigit() or annotation == "int":
            return (7, 0)
        if default[:1] in "'\"" and default:
            return ("trial", "")
        return (*_TRUTHY, *_FALSY)

    def _heir(self, call: Call, outcomes: dict[Any, Outcome], fresh: list[str]) -> str:
        """The new parameter that the old one is passed on to."""
        for name in fresh:
            if any(o.decided and o.same(self._try(call, {name: v}, fresh)) for v, o in outcomes.items() if v):
                base = self._try(call, {}, fresh)
                if any(not self._try(call, {name: v}, fresh).same(base) for v in outcomes):
                    return name
        return next((name for name in fresh if self._mixed_up(call, outcomes, fresh, name)), "")

    def _mixed_up(self, call: Call, outcomes: dict[Any, Outcome], fresh: list[str], name: str) -> bool:
        """Does every value of the old parameter do what some other value of the new one does?"""
        if any(not o.decided or o.refused for o in outcomes.values()):
            return False
        tried = [self._try(call, {name: v}, fresh) for v in (*outcomes, None)]
        told = {(o.status, o.result) for o in outcomes.values()}
        return len(told) > 1 and all(any(o.same(t) for t in tried) for o in outcomes.values())

    def _judge(self, call: Call, p: Param, heir: str, base: Outcome, outcomes: dict[Any, Outcome]) -> None:
        symbol = f"{call.symbol}({p.name})"
        if not base.decided or any(not o.decided for o in outcomes.values()):
            self.ctx.skipped.add(f"DP004 for {symbol}")
            return
        expected = {v: self._try(call, {heir: v}, [heir]) for v in outcomes} if heir else {}
        verdict = self._verdict(p.name, heir, base, outcomes, expected)
        if verdict is not None:
            self._report(verdict, call, p, heir)
            return
        if not any(o.warned for o in outcomes.values()):
            self._report(
                Verdict(
                    "DP006",
                    f"users of {p.name} learn nothing before it goes",
                    "warn with DeprecationWarning and stacklevel=2",
                ),
                call,
                p,
                heir,
            )
        if heir:
            both = self._try(call, {p.name: True, heir: False}, [heir])
            if both.decided and not both.refused:
                self._report(
                    Verdict(
                        "DP007",
                        f"{p.name} and {heir} together are accepted: one of them is lost",
                        "raise TypeError unless both are equal",
                    ),
                    call,
                    p,
                    heir,
                )

    def _verdict(  # noqa: PLR0911 - one per kind of fault
        self, name: str, heir: str, base: Outcome, outcomes: dict[Any, Outcome], expected: dict[Any, Outcome]
    ) -> Verdict | None:
        if not heir:
            silent = all(o.same(base) and not o.warned for o in outcomes.values())
            return (
                Verdict("DP005", f"{name} is accepted and has no effect", "honour it, or refuse it") if silent else None
            )
        matters = any(not e.same(base) for e in expected.values())
        if matters and all(o.same(base) for o in outcomes.values()):
            return Verdict(
                "DP005", f"{name} is accepted and ignored: {heir} keeps its default", f"pass its value on as {heir}"
            )
        refused = [v for v, o in outcomes.items() if o.refused and not expected[v].refused]
        if refused:
            return Verdict("DP004", f"{name}={refused[0]!r} raises", f"pass every value on as {heir}")
        flipped = _negated(name) != _negated(heir)
        if flipped and True in outcomes and False in outcomes:
            return _turned_wrongly(name, heir, outcomes, expected)
        for v, o in outcomes.items():
            if o.same(expected[v]) or flipped:
                continue
            if o.same(base):
                return Verdict(
                    "DP004",
                    f"{name}={v!r} is dropped: {heir} keeps its default",
                    f"pass {name} on whenever it is given, also when it is false: test for presence, not for truth",
                )
            other = next((w for w, e in expected.items() if w is not v and o.same(e)), None)
            if other is not None:
                return Verdict(
                    "DP004", f"{name}={v!r} becomes {heir}={other!r}", f"pass the value on unchanged as {heir}"
                )
        return None

    def _report(self, verdict: Verdict, call: Call, p: Param, heir: str) -> None:
        self.ctx.emit(
            verdict.rule,
            f"{call.symbol}({p.name})",
            old=p.name,
            new=heir,
            at=call.at,
            was=call.was,
            why=verdict.why,
            fix=verdict.fix,
            cause=f"shim:{p.name}->{heir}",
            audience=call.audience,
        )

    def kept_aliases(self, call: Call) -> None:
        """Find old parameters that stayed in the signature but only pass their value on to a new one; judge them."""
        old = {o.name: o for o in call.old}
        fresh = [q.name for q in call.new if q.name not in old and not q.variadic]
        if not fresh or self.trials is None or call.target is None:
            return
        for q in call.new:
            p = old.get(q.name)
            if (
                p is None
                or p.default is None
                or q.default is None
                or p.default == q.default
                or (call.symbol, p.name) in self._aliases
            ):
                continue
            new = self.ctx.new_value(call.new_scope, q.default)
            if new is not None and not (isinstance(new, Symbol) and new.sentinel):
                continue
            base = self._try(call, {}, fresh)
            outcomes = {v: self._try(call, {p.name: v}, fresh) for v in self._values(p)}
            heir = self._heir(call, outcomes, fresh)
            if heir:
                self._aliases[call.symbol, p.name] = heir
                self._judge(call, p, heir, base, outcomes)

    def is_shim(self, symbol: str, name: str) -> bool:
        """Is a kept parameter only an alias of a new one?"""
        return (symbol, name) in self._aliases

    def heir(self, symbol: str, name: str) -> str:
        """The new parameter that a kept one passes its value on to, "" if it does not."""
        return self._aliases.get((symbol, name), "")

    def positional(self, call: Call, name: str) -> None:
        """Report a shim whose parameter moved."""
        heir = self._aliases.get((call.symbol, name), "")
        self.ctx.emit(
            "DP004",
            f"{call.symbol}({name})",
            old=name,
            new=heir,
            at=call.at,
            was=call.was,
            kind="hard",
            why=f"{name} left its position: positional calls now fill other parameters",
            fix=f"put {heir} where {name} was, and take {name} by keyword",
            cause=f"shim:{name}->{heir}",
        )

    def same_default(self, call: Call, name: str, old: Any, new: Any) -> bool:
        """Do calls that leave a parameter out get what they got, because the body fills the old default in?"""
        del new
        if self.trials is None or call.target is None or isinstance(old, Symbol):
            return False
        left_out = self._try(call, {}, [])
        if not left_out.decided or not left_out.same(self._try(call, {name: old}, [])):
            return False
        return any(not self._try(call, {name: v}, []).same(left_out) for v in (7919, "trial", True, [7919]))

    def answered(self, path: str, found: Found | None) -> Found | None:
        """What the new module's `__getattr__` really gives for a name it seems to know; None if it refuses it."""
        return found if self.trials is None else answer(self.trials, path, found)

    def offered(self, path: str, found: Found | None) -> bool:
        """Did the old module's `__getattr__` give the name, rather than only name it to refuse it?"""
        sources = self.ctx.old.snapshot.sources
        return sources is None or answer(Trials(self.ctx.old, sources), path, found) is not None

    def loader(self, key: str, successor: str, path: str) -> str:
        """Does the loader still take an old config key: none, works, broken (then it is reported)?"""
        return "none" if self.loaders is None else self.loaders.verdict(key, successor, path)

    def state(self, cls: Found, key: str, successor: str, keys: list[str]) -> str:
        """Does a class rewrite an old key of loaded state: none, works, broken (then it is reported)?"""
        return "none" if self.saved is None else self.saved.verdict(cls, key, successor, keys)


def _turned_wrongly(name: str, heir: str, outcomes: dict[Any, Outcome], expected: dict[Any, Outcome]) -> Verdict | None:
    """A name that says the contrary may carry its value over as it is or turned, but in one way."""
    pairs = [(v, outcomes[v]) for v in (True, False)]
    if all(o.same(expected[v]) for v, o in pairs) or all(o.same(expected[not v]) for v, o in pairs):
        return None
    wrong = next(v for v, o in pairs if not o.same(expected[not v]))
    return Verdict("DP004", f"{name}={wrong!r} does not become {heir}={not wrong!r}", f"pass `not {name}` on as {heir}")


def _negated(name: str) -> bool:
    return any(w in _NEGATIONS for w in name.lower().split("_"))
