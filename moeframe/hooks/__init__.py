"""Extension points. A plugin imports `hookimpl` and the offer classes from here; importable without torch."""

from __future__ import annotations

from typing import Final

import pluggy

from moeframe.hooks.offers import (
    ComputeOffer,
    DatasetOffer,
    DispatcherOffer,
    ModuleNeed,
    Needs,
    NoOptions,
    Offer,
    ScheduleOffer,
    ShardingOffer,
    ToolNeed,
)
from moeframe.hooks.top_level import top_level_names
from moeframe.protocols.paths import path_field

__all__ = [
    "API_VERSION",
    "PROJECT",
    "ComputeOffer",
    "DatasetOffer",
    "DispatcherOffer",
    "ModuleNeed",
    "Needs",
    "NoOptions",
    "Offer",
    "ScheduleOffer",
    "ShardingOffer",
    "ToolNeed",
    "hookimpl",
    "path_field",
    "top_level_names",
]

PROJECT: Final = "moeframe"
API_VERSION: Final = 1
"""Version of the plugin contract. A plugin module may set ``moeframe_api = ">=1"`` to demand one."""

hookimpl = pluggy.HookimplMarker(PROJECT)
