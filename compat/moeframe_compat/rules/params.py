"""PY101-PY109: what a caller may pass."""

from __future__ import annotations

from dataclasses import dataclass, field

from moeframe_compat.index.lookup import Found
from moeframe_compat.index.signatures import spell
from moeframe_compat.index.values import Symbol, known, same, show
from moeframe_compat.interpret.shims import Shims
from moeframe_compat.model.objects import Body, Function, Param
from moeframe_compat.rules.constants import plain
from moeframe_compat.rules.context import Context, Place
from moeframe_compat.rules.renames import pair_params


@dataclass(slots=True)
class Call:
    """One callable in both releases. `codes` replaces rule codes (a dataclass's fields have their own)."""

    symbol: str
    old: list[Param]
    new: list[Param]
    at: Place
    was: Place
    old_scope: str
    new_scope: str
    target: Found | None = None
    new_body: Body | None = None
    audience: tuple[str, ...] = ()
    codes: dict[str, str] = field(default_factory=dict)
    keyword_only: bool = False
    defaults: bool = True

    def code(self, rule: str) -> str:
        """The rule to report under; "" for none."""
        return self.codes.get(rule, rule)


_IMPLEMENTED = {
    "PA003": (
        "{label} asks for {name} now: implementations of the old {label} do not take it, and fail when it is passed",
        "pass {name} only to implementations that take it, or ask for it in a second Protocol or class",
    ),
    "PA004": (
        "what {label} called {name} is called {heir} now: implementations that say {name} fail when they are given "
        "{heir}=, and those that say {heir} fail where callers give {name}=",
        "keep the name {name}, or make it positional-only, so that nobody gives it by name",
    ),
    "PA005": (
        "{label} had {name}, and has it no more: implementations that still demand it are called without it and fail",
        "keep {name}, and go on passing it, until its removal was announced",
    ),
}
"""Reason and fix where users of the package write the method, and the package calls it."""


class ParamCheck:
    """Compares the two signatures of one callable."""

    def __init__(self, ctx: Context, call: Call, shims: Shims) -> None:
        self.ctx, self.call, self.shims = ctx, call, shims
        self.old, self.new = call.old, call.new
        self.by_name = {p.name: p for p in call.new if not p.variadic}
        self.varkw = next((p for p in call.new if p.kind == "vk"), None)
        self.varargs = next((p for p in call.new if p.kind == "va"), None)
        self.renamed = pair_params(call.old, call.new)

    def run(self) -> None:
        """Report everything."""
        self.shims.kept_aliases(self.call)
        for p in self.old:
            if p.variadic:
                self._variadic(p)
            elif p.name in self.by_name:
                self._kept(p, self.by_name[p.name])
            elif p.kind != "po" or p.name in self.renamed:
                self._lost(p)
            elif len([q for q in self.new if q.positional]) <= self.old.index(p) and not self.varargs:
                self._gone(p)
        self._order()
        self._before_varargs()
        self._added()

    def emit(
        self, rule: str, name: str, why: str, fix: str, *, cause: str = "", new: str = "", severity: str = ""
    ) -> None:
        """Report a finding about one parameter, under the code that this callable's kind has for the rule."""
        code = self.call.code(rule)
        if not code:
            return
        label = self.call.symbol.rsplit(".", 1)[-1]
        if code in _IMPLEMENTED:
            names = {"name": name, "label": label, "heir": self.renamed.get(name, "")}
            why, fix = (text.format(**names) for text in _IMPLEMENTED[code])
        owner = self.call.symbol.rsplit(".", 2)[-2] if label == "__init__" else label
        self.ctx.emit(
            code,
            f"{self.call.symbol}({name})",
            why=why,
            fix=fix,
            at=self.call.at,
            was=self.call.was,
            old=spell(owner, self.old),
            new=new or spell(owner, self.new),
            cause=cause,
            audience=self.call.audience,
            severity=severity,
            policy="config classes are built by keyword" if severity == "info" else "",
        )

    def _variadic(self, p: Param) -> None:
        if not any(q.kind == p.kind for q in self.new):
            mark = "*" if p.kind == "va" else "**"
            what = "further positional arguments" if p.kind == "va" else "other keywords"
            self.emit("PY107", p.name, f"calls that pass {what} raise TypeError", f"keep {mark}{p.name}")

    def _kept(self, p: Param, q: Param) -> None:
        if p.by_name and not q.by_name:
            self.emit(
                "PY106",
                p.name,
                f"`{p.name}=...` raises TypeError: it is positional-only now",
                f"keep {p.name} before any `/` out of the signature",
            )
        if p.positional and not q.positional and not self.call.keyword_only and not self._heir_in_place(p):
            self.emit(
                "PY106",
                p.name,
                f"passing {p.name} by position raises TypeError",
                f"keep {p.name} before `*`; make it keyword-only after a deprecation",
            )
        if not p.required and q.required:
            self.emit("PY104", p.name, f"calls without {p.name} raise TypeError", f"keep the default {p.default}")
        elif p.default is not None and q.default is not None and self.call.defaults:
            self._default(p, q)

    def _heir_in_place(self, p: Param) -> bool:
        """Does what an alias passes its value on to take its position too?"""
        now = [q.name for q in self.new if q.positional]
        at = [q.name for q in self.old if q.positional].index(p.name)
        return at < len(now) and now[at] == self.shims.heir(self.call.symbol, p.name)

    def _default(self, p: Param, q: Param) -> None:
        assert p.default is not None
        assert q.default is not None
        if p.default == q.default and self.call.old_scope == self.call.new_scope and p.default.lstrip("-").isdigit():
            return
        old = self.ctx.old_value(self.call.old_scope, p.default)
        new = plain(self.ctx, old, self.ctx.new_value(self.call.new_scope, q.default))
        if same(old, new) or (p.default == q.default and not (known(old) and known(new))):
            return
        if not known(old) or not known(new):
            return
        if isinstance(new, Symbol) and new.sentinel:
            self._heir_default(p, old)
            return
        if isinstance(old, Symbol) and old.sentinel:
            return
        if self.shims.is_shim(self.call.symbol, p.name) or self.shims.same_default(self.call, p.name, old, new):
            return
        self.emit(
            "PY109",
            p.name,
            f"calls that leave {p.name} out now get {show(new)} instead of {show(old)}",
            f"keep {show(old)}, or declare the change in the ledger",
            new=f"{p.name}={show(new)}",
            cause=f"default:{p.name}:{show(old)}->{show(new)}",
        )

    def _heir_default(self, p: Param, old: object) -> None:
        """PY109 for a renamed parameter: what calls get that give it by neither name."""
        heir = self.by_name.get(self.shims.heir(self.call.symbol, p.name) or self.renamed.get(p.name, ""))
        if heir is None or heir.default is None:
            return
        new = self.ctx.new_value(self.call.new_scope, heir.default)
        told = new is not None and known(new) and known(old) and not (isinstance(new, Symbol) and new.sentinel)
        if not told or same(old, new) or self.shims.same_default(self.call, p.name, old, new):
            return
        self.emit(
            "PY109",
            p.name,
            f"calls that leave {p.name} out now get {heir.name}={show(new)} instead of {show(old)}",
            f"keep {show(old)}, or declare the change in the ledger",
            new=f"{heir.name}={show(new)}",
        )

    def _lost(self, p: Param) -> None:
        successor = self.renamed.get(p.name, "")
        if self.shims.covers(self.call, p, successor):
            self._shim_position(p)
            if p.default is not None and self.call.defaults:
                self._heir_default(p, self.ctx.old_value(self.call.old_scope, p.default))
            return
        reads = self.call.new_body.reads if self.call.new_body else []
        if self.varkw is not None and not successor:
            self._into_kwargs(p, reads)
        elif successor:
            if p.kind == "po":
                return
            if self.varkw is not None and p.name not in reads:
                silent = self.call.new_body is None or not self.call.new_body.forwards
                why = "is swallowed by **kwargs" if silent else "goes into **kwargs"
                self.emit(
                    "PY108" if silent else "PY102",
                    p.name,
                    f"`{p.name}=...` {why}; the parameter is now {successor}",
                    self._rename_fix(p.name, successor),
                    cause=f"rename:{p.name}->{successor}",
                )
                return
            self.emit(
                "PY102",
                p.name,
                f"`{p.name}=...` raises TypeError: the parameter is now {successor}",
                self._rename_fix(p.name, successor),
                cause=f"rename:{p.name}->{successor}",
            )
        else:
            self._gone(p)

    def _shim_position(self, p: Param) -> None:
        """A shim takes the name; does the position still mean the same?"""
        if not p.positional or self.varargs is not None or self.call.keyword_only:
            return
        now = [q.name for q in self.new if q.positional]
        at = [q.name for q in self.old if q.positional].index(p.name)
        if at >= len(now):
            self.emit(
                "PY106",
                p.name,
                f"passing {p.name} by position raises TypeError: it is only taken by name",
                f"keep {p.name} in the signature",
            )
        elif now[at] in {q.name for q in self.old}:
            self.shims.positional(self.call, p.name)

    @staticmethod
    def _rename_fix(old: str, new: str) -> str:
        return f"accept {old} for the deprecation window: take it from **kwargs, warn, and pass it on as {new}"

    def _gone(self, p: Param) -> None:
        self.emit(
            "PY101",
            p.name,
            f"calls that pass {p.name} raise TypeError",
            f"keep {p.name} (ignored, with a DeprecationWarning) until its removal was announced",
            cause=f"param-removed:{p.name}",
        )

    def _into_kwargs(self, p: Param, reads: list[str]) -> None:
        assert self.varkw is not None
        body = self.call.new_body
        handled = p.name in reads or (body is not None and body.forwards) or body is None
        if not handled:
            self.emit(
                "PY108",
                p.name,
                f"`{p.name}=...` is swallowed by **{self.varkw.name} and has no effect",
                f"read {p.name} from **{self.varkw.name}, or refuse unknown names",
            )
        elif p.positional and self.varargs is None and not self.call.keyword_only:
            self.emit(
                "PY106",
                p.name,
                f"passing {p.name} by position raises TypeError: it is taken from **{self.varkw.name}",
                f"keep {p.name} in the signature",
            )

    def _order(self) -> None:
        """PY103: parameters that a positional call now fills differently."""
        new_names = {v: k for k, v in self.renamed.items()}
        before = [p.name for p in self.old if p.positional and (p.name in self.by_name or p.name in self.renamed)]
        now = [q for q in self.new if q.positional]
        common = [new_names.get(q.name, q.name) for q in now if new_names.get(q.name, q.name) in before]
        before = [n for n in before if n in common]
        lost = {p.name for p in self.old if p.positional and p.name not in before}
        inserted = [
            q
            for i, q in enumerate(now)
            if new_names.get(q.name, q.name) not in before
            and q.name not in lost
            and any(new_names.get(r.name, r.name) in before for r in now[i + 1 :])
        ]
        severity = "info" if self.call.keyword_only else ""
        if common != before:
            moved = [n for n, m in zip(before, common, strict=True) if n != m]
            shim = next((n for n in moved if self.shims.is_shim(self.call.symbol, n)), "")
            if shim:
                self.shims.positional(self.call, shim)
                return
            self.emit(
                "PY103",
                moved[0],
                f"positional calls fill {', '.join(moved)} with each other's values",
                "keep the order; add new parameters at the end or after `*`",
                severity=severity,
            )
        elif inserted and all(not q.required for q in inserted) and not lost:
            first = now.index(inserted[0])
            moved = [new_names.get(q.name, q.name) for q in now[first:] if new_names.get(q.name, q.name) in before]
            moved = [n for n in moved if not n.startswith("_")]
            if moved:
                names = ", ".join(q.name for q in inserted)
                if self.shims.is_shim(self.call.symbol, moved[0]):
                    self.shims.positional(self.call, moved[0])
                    return
                self.emit(
                    "PY103",
                    moved[0],
                    f"positional calls that reach {moved[0]} now fill {names} instead",
                    f"add {names} at the end or after `*`",
                    severity=severity,
                    cause=f"inserted:{names}",
                )

    def _before_varargs(self) -> None:
        """PY103 for *args: what a positional call put there now fills a new parameter."""
        old_va = next((p for p in self.old if p.kind == "va"), None)
        if old_va is None or self.varargs is None:
            return
        known = {p.name for p in self.old} | set(self.renamed.values())
        fresh = [q.name for q in self.new if q.positional and q.name not in known]
        if fresh:
            names = ", ".join(fresh)
            self.emit(
                "PY103",
                old_va.name,
                f"what callers pass to *{old_va.name} now fills {names}",
                f"add {names} after *{self.varargs.name}",
                cause=f"inserted:{names}",
            )

    def _added(self) -> None:
        old_names = {p.name for p in self.old}
        for q in self.new:
            if not q.required or q.name in old_names or q.name in self.renamed.values():
                continue
            if q.kind == "po" and self.new.index(q) < len([p for p in self.old if p.kind == "po"]):
                continue
            self.emit(
                "PY105",
                q.name,
                f"calls without {q.name} raise TypeError",
                f"give {q.name} a default that keeps today's behaviour",
                cause=f"param-added:{q.name}",
            )


def check_function(ctx: Context, path: str, old: Found, new: Found, shims: Shims) -> None:
    """Signature of one function in two releases; every variant of a conditional definition counts."""
    from moeframe_compat.index.signatures import bound, effective

    assert isinstance(old.obj, Function)
    params = effective(ctx.old, old)
    choices = [effective(ctx.new, new)] if isinstance(new.obj, Function) else []
    body = None
    if isinstance(new.obj, Function):
        body = new.obj.body
        choices += [bound(v) for v in new.obj.variants]
    for choice in choices:
        call = Call(
            path,
            params,
            choice,
            ctx.new_place(new),
            ctx.old_place(old),
            old.path.rpartition(".")[0],
            new.path.rpartition(".")[0],
            target=new,
            new_body=body,
        )
        ParamCheck(ctx, call, shims).run()
