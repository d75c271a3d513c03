"""API compatibility checking, built on griffe. Imports neither torch nor moeframe."""

from __future__ import annotations

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("moeframe-compat")
