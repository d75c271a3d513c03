"""Surfaces of a package that are not plain Python objects: command line, registries, recipes, project file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLICK = frozenset({"click", "rich_click", "cloup", "asyncclick"})
"""Packages whose decorators make commands as those of click do."""


@dataclass(slots=True)
class CliOption:
    """One option or positional argument of a parser.

    `parser` tells parsers apart: the place that builds it, then the sub-command. `value`, `choices` and `default`
    are source texts; `type` is the callable's name or an annotation. Positional arguments of one `scope` (the function
    and the parser in it) stand in their order; without a scope nobody can tell.
    """

    parser: str
    flags: list[str]
    dest: str
    file: str
    line: int
    action: str = ""
    type: str = ""
    default: str | None = None
    choices: list[str] | None = None
    nargs: str = ""
    required: bool = False
    positional: bool = False
    scope: str = ""


@dataclass(slots=True)
class CliCommand:
    """A sub-command, or a parser itself. `abbreviates`: option names may be shortened.

    `target` is `module:name` of a function that is made a command where it is not defined. `adds` names what else
    decorates it and may add options, "?" for what has no name. `app` is what it is a command of, where only the module
    that defines that tells whether it is one of click or of typer.
    """

    name: str
    file: str
    line: int
    parser: str = ""
    abbreviates: bool = False
    target: str = ""
    adds: list[str] = field(default_factory=list)
    app: str = ""


@dataclass(slots=True)
class OptionBundle:
    """A function or variable that may add options of click where it decorates: its dotted path, and what it adds.

    `uses` names what it takes further ones from; `open`: it adds some whose names are computed.
    """

    name: str
    options: list[CliOption] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    open: bool = False


@dataclass(slots=True)
class Registration:
    """An object registered under a literal name: `registry` is the registering callable or the table.

    `options` is `module:name` of the dataclass whose fields are its options, "" if it states none.
    """

    registry: str
    name: str
    target: str
    file: str
    line: int
    options: str = ""


@dataclass(slots=True)
class Resolver:
    """An OmegaConf resolver."""

    name: str
    file: str
    line: int


@dataclass(slots=True)
class GroupUse:
    """An entry-point group that the package reads, or a project name of its hooks.

    `kind` is group, hooks, or "computed group": then `name` is the text of an expression.
    """

    kind: str
    name: str
    file: str
    line: int


@dataclass(slots=True)
class Variable:
    """An environment variable that the package reads; `computed`: `name` is the text of an expression."""

    name: str
    file: str
    line: int
    computed: bool = False


@dataclass(slots=True)
class Recipe:
    """A bundled YAML or TOML file: dotted key to value, and dotted key to line."""

    file: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Declared:
    """What a release itself says about its API: see the settings of the same names.

    `stated` tells an empty table from none.
    """

    stated: bool = False
    modules_off: list[str] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)
    exclude: list[str] = field(default_factory=list)
    config_classes: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    nominal: list[str] = field(default_factory=list)
    severities: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Project:
    """What the project file (or wheel metadata) declares."""

    file: str = ""
    version: str = ""
    scripts: dict[str, str] = field(default_factory=dict)
    entry_points: dict[str, dict[str, str]] = field(default_factory=dict)
    requires: list[str] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    declared: Declared = field(default_factory=Declared)


@dataclass(slots=True)
class Surfaces:
    """All of them."""

    options: list[CliOption] = field(default_factory=list)
    commands: list[CliCommand] = field(default_factory=list)
    bundles: list[OptionBundle] = field(default_factory=list)
    registrations: list[Registration] = field(default_factory=list)
    resolvers: list[Resolver] = field(default_factory=list)
    groups: list[GroupUse] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    structured: list[str] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    project: Project = field(default_factory=Project)
    open_questions: list[str] = field(default_factory=list)
