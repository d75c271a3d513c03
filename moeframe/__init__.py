"""Declarative Mixture-of-Experts training.

A recipe composes a dispatcher, a sharding strategy, a schedule and a compute backend, each a plugin, into a
DeepSeek-V3 expert-parallel training job. Importing this package never imports torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moeframe.config.load import load_recipe
    from moeframe.config.schema import Recipe
    from moeframe.train.assemble import Job, assemble
    from moeframe.train.hf import load_hf

__all__ = ["Job", "Recipe", "__version__", "assemble", "load_hf", "load_recipe"]

__version__ = version("moeframe")

_HOMES = {
    "Job": "moeframe.train.assemble",
    "Recipe": "moeframe.config.schema",
    "assemble": "moeframe.train.assemble",
    "load_hf": "moeframe.train.hf",
    "load_recipe": "moeframe.config.load",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing moeframe stays quick and free of torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'moeframe' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
