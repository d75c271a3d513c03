"""Reports as text, JSON, GitHub annotations and Markdown. Same report, same bytes: no clocks, no absolute paths."""

from __future__ import annotations

from collections.abc import Callable

from moeframe_compat.render.github import github
from moeframe_compat.render.machine import as_json
from moeframe_compat.render.markdown import markdown
from moeframe_compat.render.text import text
from moeframe_compat.report import Report

FORMATS: dict[str, Callable[[Report], str]] = {"text": text, "json": as_json, "github": github, "markdown": markdown}
"""Renderers by name."""
