"""The conformance kit for compute backends. Subclass `ComputeConformance` in a test module; needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from moeframe.protocols.precision import DtypeName
from moeframe.testing import compute_checks as checks
from moeframe.testing.ranks import RankPool

if TYPE_CHECKING:
    from moeframe.hooks.offers import ComputeOffer

__all__ = ["ComputeConformance"]


class ComputeConformance:
    """Proves that a compute backend keeps the protocol and states its traits truthfully.

    Subclass it and set `offer`, whose `build` and `traits` must be importable functions. A fixture `ranks` must give a
    `RankPool` of the device:

        class TestMine(ComputeConformance):
            offer = MY_OFFER
            options = {"precision": "fp8"}
            distance = 0.1

    Every output and gradient is compared with a formula in float64, in each dtype that the traits name; the others are
    skipped with the reason.
    """

    offer: ClassVar[ComputeOffer]
    """The offer under test."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Fields of the offer's options that differ from their defaults."""
    device: ClassVar[str] = "cpu"
    """Device type of the rank: cpu or cuda."""
    distance: ClassVar[float | None] = None
    """Largest legal ``|a - b| / |b|`` of a tensor; None: that of the dtype (1e-12, 1e-5, 0.03)."""
    timeout_s: ClassVar[float] = 60.0
    """Limit of each check."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each check in each dtype, and the experts with each split of rows."""
        if "dtype" in metafunc.fixturenames:
            metafunc.parametrize("dtype", ["float64", "float32", "bfloat16"])
        if "rows" in metafunc.fixturenames:
            metafunc.parametrize("rows", list(checks.ROWS))

    def subject(self, dtype: DtypeName) -> checks.Subject:
        """Return what is sent to the rank; skips what `dtypes` leaves out."""
        subject = checks.Subject(
            offer=self.offer, options=self.options, device=self.device, dtype=dtype, distance=self.distance
        )
        if dtype not in subject.traits.dtypes:
            pytest.skip(f"dtypes leaves out {dtype}")
        return subject

    def run(self, ranks: RankPool, check: Callable[..., None], *arguments: object) -> None:
        """Run a check on one rank."""
        ranks.run(check, *arguments, world_size=1, timeout=self.timeout_s)

    def test_parameters_have_the_names_that_everyone_knows(self, ranks: RankPool, dtype: DtypeName) -> None:
        """Sharding, checkpoints and pretrained weights go by them."""
        self.run(ranks, checks.check_parameters, self.subject(dtype))

    @pytest.mark.parametrize("leading", [(2, 8), (3, 5), (0,)])
    def test_linears(self, ranks: RankPool, dtype: DtypeName, leading: tuple[int, ...]) -> None:
        """Any number of rows."""
        self.run(ranks, checks.check_linear, self.subject(dtype), leading)

    def test_norms(self, ranks: RankPool, dtype: DtypeName) -> None:
        """Statistics in at least float32."""
        self.run(ranks, checks.check_norm, self.subject(dtype))

    @pytest.mark.parametrize("on_host", [True, False])
    def test_experts(self, ranks: RankPool, dtype: DtypeName, rows: str, on_host: bool) -> None:  # noqa: FBT001
        """Ragged rows, spare rows, none at all; counts known on the host or not."""
        self.run(ranks, checks.check_experts, self.subject(dtype), rows, on_host)

    @pytest.mark.parametrize("masked", [False, True])
    @pytest.mark.parametrize("value_size", [8, 16])
    def test_attention(self, ranks: RankPool, dtype: DtypeName, value_size: int, masked: bool) -> None:  # noqa: FBT001
        """Causal, with a mask and without."""
        self.run(ranks, checks.check_attention, self.subject(dtype), value_size, masked)

    def test_rows_that_traits_release_can_be_freed(self, ranks: RankPool, dtype: DtypeName) -> None:
        """The trait `saves_expert_input`."""
        subject = self.subject(dtype)
        if subject.traits.saves_expert_input:
            pytest.skip("saves_expert_input is true")
        self.run(ranks, checks.check_freed_inputs, subject)

    def test_outputs_that_traits_release_can_be_freed(self, ranks: RankPool, dtype: DtypeName) -> None:
        """The traits `saves_expert_output` and `saves_norm_output`."""
        self.run(ranks, checks.check_freed_outputs, self.subject(dtype))

    def test_weight_gradients_wait_for_whoever_postpones_them(self, ranks: RankPool, dtype: DtypeName) -> None:
        """The trait `splits_expert_backward`."""
        subject = self.subject(dtype)
        if not subject.traits.splits_expert_backward:
            pytest.skip("splits_expert_backward is false")
        self.run(ranks, checks.check_postponed_weights, subject)
