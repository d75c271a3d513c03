"""What a wrong gradient or norm looks like, in words: the ratio to the right one and its likely cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from moeframe.mesh.degrees import Degrees

__all__ = ["Difference", "explain_gradient", "explain_norm", "require_same_gradients", "worst"]

_AXES = ("dp", "edp", "ep", "dp_replicate", "dp_shard", "edp_shard")
"""In the order in which a ratio is looked for: dense parameters lie over dp, experts over edp."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where two tensors differ most: |found - wanted| there, and the largest |wanted| anywhere."""

    error: float
    scale: float
    place: tuple[int, ...]

    def exceeds(self, tolerance: float) -> bool:
        """Whether the difference is more than `tolerance` times the largest wanted value; NaN is."""
        return not self.error <= tolerance * self.scale

    def __str__(self) -> str:
        """Return it in words."""
        return f"off by {self.error:.3g} at {self.place} where the largest value is {self.scale:.3g}"


def worst(found: torch.Tensor, wanted: torch.Tensor) -> Difference:
    """Compare two tensors of one shape."""
    if not wanted.numel():
        return Difference(error=0.0, scale=0.0, place=())
    error = (found.double() - wanted.double()).abs()
    error = torch.where(error.isnan(), torch.inf, error)
    place = tuple(int(i) for i in torch.unravel_index(error.argmax(), error.shape))
    return Difference(error=float(error[place]), scale=float(wanted.double().abs().max()), place=place)


def sizes(degrees: Degrees) -> dict[str, int]:
    """Return the sizes of the axes that have more than one rank, in the order of likelihood."""
    every = {axis: degrees.data_ranks if axis == "dp" else int(getattr(degrees, axis)) for axis in _AXES}
    return {axis: size for axis, size in every.items() if size > 1}


def explain_gradient(
    found: torch.Tensor,
    wanted: torch.Tensor,
    parts: Mapping[str, torch.Tensor],
    *,
    degrees: Degrees,
    micro_batches: int,
    tolerance: float,
) -> str:
    """Say how a wrong gradient relates to the right one.

    Args:
        found: what the strategy gave.
        wanted: what it should have given.
        parts: what it would be if ranks were left out of the sum, by which.
        degrees: of the job.
        micro_batches: of the step.
        tolerance: relative.
    """
    if not bool(found.isfinite().all()):
        return "not finite"
    if not bool(found.any()):
        return "zero: the gradient is lost"
    for what, part in parts.items():
        if not worst(found, part).exceeds(tolerance):
            return f"the sum over {what} only: the rest is not added"
    ratio = float((found * wanted).sum() / wanted.square().sum()) if bool(wanted.any()) else 0.0
    if worst(found, ratio * wanted).exceeds(tolerance):
        return "no multiple of the right one: it holds other parameters' gradients, or those of some ranks only"
    return f"×{ratio:.3f}{_named(ratio, {**sizes(degrees), 'micro-batches': micro_batches})}"  # noqa: RUF001


def _named(ratio: float, factors: Mapping[str, int]) -> str:
    """Name the sizes that a ratio may come from; empty when none fits."""

    def close(value: float) -> bool:
        return abs(ratio - value) < 1e-3 * value

    more = [name for name, size in factors.items() if size > 1 and close(size)]
    less = [f"1/{name}" for name, size in factors.items() if size > 1 and close(1 / size)]
    if more:
        return f" = {' or '.join(more)}: added that many times, or a division is missing"
    if less:
        return f" = {' or '.join(less)}: averaged or divided where gradients are sums"
    return ""


def require_same_gradients(
    found: Mapping[str, torch.Tensor],
    wanted: Mapping[str, torch.Tensor],
    parts: Mapping[str, Mapping[str, torch.Tensor]],
    roles: Mapping[str, str],
    *,
    place: str,
    degrees: Degrees,
    micro_batches: int,
    tolerance: float,
) -> None:
    """Require equal gradients, else name the parameters, grouped by what is wrong with them."""
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, expected in wanted.items():
        if not worst(found[name], expected).exceeds(tolerance):
            continue
        text = explain_gradient(
            found[name],
            expected,
            {what: part[name] for what, part in parts.items()},
            degrees=degrees,
            micro_batches=micro_batches,
            tolerance=tolerance,
        )
        kind = "expert" if roles[name] == "expert" else "dense"
        wrong.setdefault((kind, text), []).append(name)
    if wrong:
        lines = [
            f"{kind} {_listed(names)}: {text} (the first is {worst(found[names[0]], wanted[names[0]])})"
            for (kind, text), names in wrong.items()
        ]
        raise AssertionError(f"{place}: gradients differ from one process. " + "; ".join(lines))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more


def explain_norm(
    found: float, *, dense: float, expert: float, own_expert: float, stages: float, degrees: Degrees
) -> str:
    """Say what a wrong norm has counted.

    Args:
        found: the wrong norm.
        dense: the sum of squares of the dense gradients of this stage.
        expert: that of all experts of this stage.
        own_expert: that of the experts on this rank.
        stages: that of everything on the other pipeline stages.
        degrees: of the job.
    """
    candidates: dict[str, float] = {
        "the experts of this ep rank only": dense + own_expert + stages,
        "no experts": dense + stages,
        "the experts only": expert + stages,
        "this pipeline stage only": dense + expert,
    }
    for axis, size in sizes(degrees).items():
        candidates |= {
            f"dense parameters {size} times = {axis}": size * dense + expert + stages,
            f"experts {size} times = {axis}": dense + size * expert + stages,
            f"everything {size} times = {axis}": size * (dense + expert) + stages,
            f"dense parameters 1/{axis} of a time": dense / size + expert + stages,
            f"experts 1/{axis} of a time": dense + expert / size + stages,
        }
    fitting = [text for text, square in candidates.items() if abs(found - square**0.5) <= 1e-6 * square**0.5]
    return f"as if it counted {' or '.join(fitting)}" if fitting else "no simple miscount explains it"
