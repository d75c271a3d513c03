"""`[tool.moeframe_compat]` of a pyproject file, or the same table in a file of its own."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from moeframe_compat.errors import UsageError
from moeframe_compat.model.surfaces import Declared
from moeframe_compat.rules.base import SEVERITIES, catalogue

RUNNERS = ("loader", "caller", "restorer", "runner")
"""Keys that name functions which take both spellings of a declared change: a text, or a list."""


@dataclass(slots=True)
class Settings:
    """What a project says about its check.

    What exempts (`modules_off`, `markers`, `nominal`, `exclude`, a lower severity) counts from the next release on: a
    check goes by what the old release said (`policy.exemptions`).

    Attributes:
        package: Import package.
        distribution: Name on the index, for `pypi:`.
        baseline: SPEC of the old release.
        ledger: File of declared changes.
        suppressions: File of suppressions.
        exclude: Globs of files that are not read.
        companions: Further import packages of the distribution whose offers recipes name.
        recipes: Folders of YAML files beside the package.
        config_classes: Classes whose fields are recipe keys although neither name nor use says so.
        constants: Constants whose value is watched although their name is not in capitals.
        markers: Further decorators (last names) that mark unstable objects.
        severities: Rule code to severity.
        modules_off: Dotted prefixes of modules that are no API.
        nominal: Dotted prefixes of Protocols that implementers are told to inherit from, so that they get new members
            that have a body.
        probe: Ask the running package where reading it is not enough.
        loader: What takes declared recipe keys in both spellings, one function or several; see `probe.ledger`.
        caller: The same for parameters.
        restorer: The same for names of saved state.
        runner: The same for options of commands.
    """

    package: str = ""
    distribution: str = ""
    baseline: str = ""
    ledger: str = ""
    suppressions: str = ""
    exclude: list[str] = field(default_factory=list)
    companions: list[str] = field(default_factory=list)
    recipes: list[str] = field(default_factory=lambda: ["recipes"])
    config_classes: list[str] = field(default_factory=list)
    constants: list[str] = field(default_factory=list)
    markers: list[str] = field(default_factory=list)
    severities: dict[str, str] = field(default_factory=dict)
    modules_off: list[str] = field(default_factory=list)
    nominal: list[str] = field(default_factory=list)
    probe: bool = True
    loader: list[str] = field(default_factory=list)
    caller: list[str] = field(default_factory=list)
    restorer: list[str] = field(default_factory=list)
    runner: list[str] = field(default_factory=list)
    root: Path = field(default_factory=Path)

    def declared(self) -> Declared:
        """What a baseline file records of them."""
        return Declared(
            True,
            list(self.modules_off),
            list(self.markers),
            list(self.exclude),
            list(self.config_classes),
            list(self.constants),
            list(self.nominal),
            dict(self.severities),
        )


def load_settings(path: Path, *, required: bool) -> Settings:
    """Read the table.

    Args:
        path: `pyproject.toml`, or a TOML file that holds the table or its contents.
        required: Whether a missing file or table is an error.

    Raises:
        UsageError: It cannot be read, or says something unknown.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if required:
            raise UsageError(f"{path.name}: no such file") from None
        return Settings(root=path.parent)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as e:
        raise UsageError(f"{path.name}: {e}") from e
    table = data.get("tool", {}).get("moeframe_compat")
    if table is None:
        if path.name == "pyproject.toml" and required:
            raise UsageError(f"{path.name}: no [tool.moeframe_compat] table")
        table = {} if path.name == "pyproject.toml" else data
    return _parse(table, path)


def _parse(table: dict[str, Any], path: Path) -> Settings:
    known = {f.name: f for f in fields(Settings) if f.name != "root"}
    made = Settings(root=path.parent)
    for name, value in table.items():
        if name not in known:
            raise UsageError(
                f"{path.name}: [tool.moeframe_compat] {name}: unknown key; known: {', '.join(sorted(known))}"
            )
        if name in RUNNERS and isinstance(value, str):
            value = [value]  # noqa: PLW2901 - one is a list of one
        if type(value) is not type(getattr(made, name)):
            want = type(getattr(made, name)).__name__
            raise UsageError(f"{path.name}: [tool.moeframe_compat] {name} = {value!r}: expected a {want}")
        setattr(made, name, value)
    for code, severity in made.severities.items():
        if code not in catalogue() or severity not in SEVERITIES:
            raise UsageError(
                f"{path.name}: severities: {code} = {severity!r}: "
                f"expected a rule code and one of {', '.join(SEVERITIES)}"
            )
    return made
