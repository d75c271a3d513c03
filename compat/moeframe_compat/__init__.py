"""Tells what a release of a Python package breaks, for whom, and how to fix it. Imports neither torch nor moeframe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moeframe_compat.report import Report, check

__all__ = ["Report", "__version__", "check"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("Report", "check"):
        from moeframe_compat import report

        return getattr(report, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
