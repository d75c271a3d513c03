"""What a Python package offers, as plain data: modules, classes, functions, attributes, aliases.

Texts of expressions are kept as griffe prints them (unresolved); `moeframe_compat.index` gives them meaning.
Every object knows its line; its file is the file of its module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

POSITIONAL_ONLY = "po"
POSITIONAL_OR_KEYWORD = "pk"
VAR_POSITIONAL = "va"
KEYWORD_ONLY = "ko"
VAR_KEYWORD = "vk"

ANY = "*"
"""In `Module.loads`: nobody can tell which ones."""
MAYBE = "?"
"""Behind a name in `Module.loads`: it depends on a condition, or there may be no such module."""
NOT_SAVED = "register_buffer(persistent=False)"
"""In `Class.state`: a buffer that no checkpoint holds."""


@dataclass(slots=True)
class Param:
    """One parameter. `kind` is one of the constants above; `default` and `annotation` are source texts."""

    name: str
    kind: str = POSITIONAL_OR_KEYWORD
    default: str | None = None
    annotation: str | None = None

    @property
    def variadic(self) -> bool:
        """Is it `*args` or `**kwargs`?"""
        return self.kind in (VAR_POSITIONAL, VAR_KEYWORD)

    @property
    def required(self) -> bool:
        """Must a caller give it?"""
        return self.default is None and not self.variadic

    @property
    def positional(self) -> bool:
        """Can it be given by position?"""
        return self.kind in (POSITIONAL_ONLY, POSITIONAL_OR_KEYWORD)

    @property
    def by_name(self) -> bool:
        """Can it be given by name?"""
        return self.kind in (KEYWORD_ONLY, POSITIONAL_OR_KEYWORD)


@dataclass(slots=True)
class Decorator:
    """A decorator: the dotted path of what is called (as far as its module's imports tell) and its whole text."""

    path: str
    text: str

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rsplit(".", 1)[-1]


@dataclass(slots=True)
class Raise:
    """A `raise` statement: the exception's name as written, its arguments, and the conditions it stands under.

    An `assert` is one of AssertionError, with the test in place of arguments.
    """

    error: str
    args: str = ""
    guard: str = ""


@dataclass(slots=True)
class CallShape:
    """How something is called: number of positional arguments, names of keywords; `open` if either is starred."""

    npos: int = 0
    names: list[str] = field(default_factory=list)
    open: bool = False


@dataclass(slots=True)
class Wrapper:
    """The function that a decorator puts in place of the decorated one.

    `lead` lists what it passes first to the decorated function: names of its own parameters, "" for anything else.
    `star` and `names`: it passes its `*args` and `**kwargs` on.
    """

    params: list[Param] = field(default_factory=list)
    lead: list[str] = field(default_factory=list)
    star: bool = False
    names: bool = False


@dataclass(slots=True)
class Body:
    """Facts about a function's body that its signature does not show.

    Attributes:
        raises: Its own `raise` statements.
        stub: It does nothing but raise.
        trivial: It is `...`, `pass` or a docstring.
        yields: It is a generator.
        returns: Texts of what it returns (at most four).
        reads: Names it takes out of its `**kwargs` (by subscript, get, pop, in, or a loop over a constant).
        forwards: It passes its `**kwargs` on.
        self_calls: Methods it calls on `self`.
        param_calls: How it calls its own parameters.
        param_keys: String keys it reads from its parameters: parameter to keys.
        keyword_calls: Keywords it gives to methods of any object: method name to keyword names.
        warns: Text of the deprecation it announces, if any.
        calls: A digest of the names it calls, for telling a rename from a rewrite.
        result: What a function without parameters returns, where it does nothing else.
        gives: The attribute of its own object that a method returns, where it does nothing else.
        unpacks: What it calls with `**mapping` of something that is not its own `**kwargs`.
        hook_calls: Hooks it calls, in order: `name(a, b=None)`; `*` for one whose name is computed.
        exits: Texts of exit codes it ends with.
        printed: Keys of the objects it prints as JSON.
    """

    raises: list[Raise] = field(default_factory=list)
    stub: bool = False
    trivial: bool = False
    yields: bool = False
    returns: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    forwards: bool = False
    self_calls: dict[str, list[CallShape]] = field(default_factory=dict)
    param_calls: dict[str, list[CallShape]] = field(default_factory=dict)
    param_keys: dict[str, list[str]] = field(default_factory=dict)
    keyword_calls: dict[str, list[str]] = field(default_factory=dict)
    warns: str = ""
    calls: str = ""
    result: str = ""
    gives: str = ""
    unpacks: list[str] = field(default_factory=list)
    hook_calls: list[str] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    """A function, method or property (`role`), with what its decorators say.

    `binding` is function, method, static or class. `branch` tells the conditions a definition stands under
    ("" when it is unconditional); `variants` holds the other definitions of the same name in other branches.
    """

    name: str
    line: int
    params: list[Param] = field(default_factory=list)
    returns: str | None = None
    decorators: list[Decorator] = field(default_factory=list)
    role: str = "function"
    binding: str = "function"
    is_async: bool = False
    abstract: bool = False
    writable: bool = False
    deletable: bool = False
    overloads: list[list[Param]] = field(default_factory=list)
    body: Body = field(default_factory=Body)
    wraps: Wrapper | None = None
    doc: str = ""
    branch: str = ""
    type_checking: bool = False
    variants: list[Function] = field(default_factory=list)

    def decorated(self, *names: str) -> Decorator | None:
        """The first decorator whose last name is one of these."""
        return next((d for d in self.decorators if d.name in names), None)


@dataclass(slots=True)
class Attribute:
    """A variable of a module or class. `instance`: only assigned on `self`, by method `setter`.

    `rebound`: it had another value before, which what stands in between may have seen.
    """

    name: str
    line: int
    value: str | None = None
    annotation: str | None = None
    instance: bool = False
    setter: str = ""
    rebound: bool = False
    branch: str = ""
    type_checking: bool = False


@dataclass(slots=True)
class Alias:
    """An import: `target` is a dotted path. `explicit`: written `import x as x`."""

    name: str
    line: int
    target: str
    explicit: bool = False
    wildcard: bool = False
    branch: str = ""
    type_checking: bool = False


@dataclass(slots=True)
class Class:
    """A class. `bases` and `keywords` are texts; `state` maps entries of its saved state to the text they come from.

    `named` lists what its methods give a name to by a call: `self.add_module("name", ...)` and the like. `changing`
    lists attributes that do not stay what the constructor was given.
    """

    name: str
    line: int
    bases: list[str] = field(default_factory=list)
    keywords: dict[str, str] = field(default_factory=dict)
    decorators: list[Decorator] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    type_params: list[str] = field(default_factory=list)
    slots: list[str] | None = None
    state: dict[str, str] = field(default_factory=dict)
    named: list[str] = field(default_factory=list)
    changing: list[str] = field(default_factory=list)
    doc: str = ""
    branch: str = ""
    type_checking: bool = False

    def decorated(self, *names: str) -> Decorator | None:
        """The first decorator whose last name is one of these."""
        return next((d for d in self.decorators if d.name in names), None)


Member = Function | Attribute | Alias | Class


@dataclass(slots=True)
class Module:
    """A module: members by name in order of definition, `__all__`, and what makes its contents uncertain.

    `exports` is None without `__all__`. `dynamic` names constructs that add names at run time.
    `replaced` maps names put into `sys.modules` to the object's text. `lazy` lists names that `__getattr__` may answer.
    `loads` lists what it imports of its own package while it is imported; see `extract/loaded.py`.
    """

    path: str
    file: str
    members: dict[str, Member] = field(default_factory=dict)
    imports: dict[str, str] = field(default_factory=dict)
    exports: list[str] | None = None
    dynamic: list[str] = field(default_factory=list)
    replaced: dict[str, str] = field(default_factory=dict)
    lazy: list[str] = field(default_factory=list)
    is_package: bool = False
    loads: list[str] = field(default_factory=list)
