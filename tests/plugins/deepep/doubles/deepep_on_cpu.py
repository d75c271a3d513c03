"""The dispatchers under names that a recipe for CPUs may use: they need nothing but the double."""

from __future__ import annotations

from dataclasses import replace

from moeframe_deepep import plugin
from moeframe_deepep.options import DeepEPOptions

from moeframe.hooks import Needs, hookimpl


def _buffer(options: DeepEPOptions) -> DeepEPOptions:
    return replace(options, api="buffer")


@hookimpl
def moeframe_offer_dispatchers():
    deepep, hybridep = plugin.moeframe_offer_dispatchers()
    return [
        replace(
            deepep,
            name="deepep_on_cpu",
            needs=Needs(),
            build=lambda options, context: deepep.build(_buffer(options), context),
            traits=lambda options, precision: deepep.traits(_buffer(options), precision),
        ),
        replace(hybridep, name="hybridep_on_cpu", needs=Needs()),
    ]
