from __future__ import annotations

from moeframe_torch_compute import plugin

from moeframe.testing.compute_suite import ComputeConformance


class TestTorch(ComputeConformance):
    (offer,) = plugin.moeframe_offer_computes()
