"""What project files and a wheel's metadata declare: version, scripts, entry points, requirements, what is API."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from typing import Any

from moeframe_compat.errors import ExtractionError
from moeframe_compat.extract.trees import SURFACE_FILE, Tree
from moeframe_compat.model.surfaces import Declared, Project


def read_project(tree: Tree) -> Project:
    """The project facts of a release; empty when it carries no project file.

    Raises:
        ExtractionError: A project file is broken.
    """
    project = Project()
    for file in sorted(tree.files, key=lambda f: (f.count("/"), f)):
        last = file.rsplit("/", 1)[-1]
        text = tree.files[file].decode("utf-8", errors="replace")
        if last == "pyproject.toml" and _ours(file, tree):
            try:
                _pyproject(project, file, text)
            except (AttributeError, TypeError) as e:  # a text where a table is due, and the like
                raise ExtractionError(f"{file}: not a valid project file: {e}") from e
        elif last == SURFACE_FILE and _ours(file, tree):
            _declared(project, _toml(file, text))
        elif last == "METADATA":
            project.file = project.file or file
            found = re.search(r"^Version: (.+)$", text, re.MULTILINE)
            project.version = project.version or (found[1].strip() if found else "")
            project.requires += re.findall(r"^Requires-Dist: (.+)$", text, re.MULTILINE)
        elif last == "entry_points.txt":
            _entry_points(project, file, _ini(file, text))
        elif last == "setup.cfg" and _ours(file, tree):
            _setup_cfg(project, file, _ini(file, text))
    return project


def _ours(file: str, tree: Tree) -> bool:
    """At the root of the release, or inside or just above the package."""
    folder = file.rpartition("/")[0]
    return folder == "" or f"{tree.prefix}/".startswith(f"{folder}/")


def _toml(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise ExtractionError(f"{file}: not valid TOML: {e}") from e


def _pyproject(project: Project, file: str, text: str) -> None:
    data = _toml(file, text)
    table: dict[str, Any] = data.get("project", {})
    poetry: dict[str, Any] = data.get("tool", {}).get("poetry", {})
    project.file = file
    project.version = str(table.get("version", poetry.get("version", "")) or project.version)
    project.requires = [str(r) for r in table.get("dependencies", [])] or project.requires
    for key in ("scripts", "gui-scripts"):
        project.scripts |= {k: str(v) for k, v in table.get(key, poetry.get(key, {})).items()}
    groups = table.get("entry-points", poetry.get("plugins", {}))
    project.entry_points |= {g: {k: str(v) for k, v in names.items()} for g, names in groups.items()}
    _lines(project, text)
    if "moeframe_compat" in data.get("tool", {}):
        _declared(project, data["tool"]["moeframe_compat"])


def _declared(project: Project, table: dict[str, Any]) -> None:
    """What the release says of its own API; whatever else its table holds is for the one who checks it."""
    project.declared.stated = True
    for f in fields(Declared):
        known, given = getattr(project.declared, f.name), table.get(f.name)
        if isinstance(known, list) and isinstance(given, list):
            known += [str(item) for item in given]
        elif isinstance(known, dict) and isinstance(given, dict):
            known |= {str(k): str(v) for k, v in given.items()}


def _lines(project: Project, text: str) -> None:
    names = [*project.scripts, *(n for group in project.entry_points.values() for n in group), *project.entry_points]
    for number, line in enumerate(text.splitlines(), 1):
        head = re.split(r"[=\]]", line.strip().strip("["))[0].strip().strip("\"'")
        for name in (head, head.removeprefix("project.entry-points.").strip("\"'")):
            if name in names:
                project.lines.setdefault(name, number)


def _ini(file: str, text: str) -> dict[str, dict[str, str]]:
    import configparser

    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as e:
        raise ExtractionError(f"{file}: {str(e).splitlines()[0]}") from e
    return {name: dict(parser[name]) for name in parser.sections()}


def _setup_cfg(project: Project, file: str, data: dict[str, dict[str, str]]) -> None:
    project.file = project.file or file
    version = data.get("metadata", {}).get("version", "")
    if version[:1].isdigit():
        project.version = project.version or version
    groups = {}
    for group, lines in data.get("options.entry_points", {}).items():
        pairs = [line.partition("=") for line in lines.splitlines() if "=" in line]
        groups[group] = {a.strip(): b.strip() for a, _, b in pairs}
    _entry_points(project, file, groups)


def _entry_points(project: Project, file: str, groups: dict[str, dict[str, str]]) -> None:
    project.file = project.file or file
    for group, names in groups.items():
        if group in ("console_scripts", "gui_scripts"):
            project.scripts = names | project.scripts
        else:
            project.entry_points.setdefault(group, {}).update(names)
