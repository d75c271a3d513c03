"""The published conformance checks of `moeframe.testing`, run on one offer. Imports torch when a kit is built."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from moeframe.errors import JobFailedError
from moeframe.hooks.offers import ComputeOffer, DispatcherOffer, Offer, ScheduleOffer, ShardingOffer
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.precision import DtypeName, Precision
from moeframe.testing.ranks import RankError, RankPool, RankTimeoutError
from moeframe.verify.outcome import Outcome, raised_at

if TYPE_CHECKING:
    from moeframe.protocols.sharding import ShardingTraits

__all__ = ["KITS", "Outcome", "Trial", "run_kit"]

Device = Literal["cpu", "cuda"]

_DTYPES: Final[tuple[DtypeName, ...]] = ("float64", "float32", "bfloat16")
_GROUP_SIZES: Final = (1, 2, 4)
_LIMIT_S: Final = 120.0
_MOST_SILENT: Final = 2
"""Checks that may go without an answer until the others are left out."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One check on some ranks. `excluded`: the trait that leaves it out, if one does."""

    check: str
    ranks: int
    call: Callable[[], None]
    excluded: str = ""


def run_kit(offer: Offer, *, device: Device, most_ranks: int) -> Iterator[Outcome]:
    """Yield the outcome of every check of the kit of an offer's kind, as each is done.

    Args:
        offer: of a kind in `KITS`, with default options. Its `build` and `traits` must be importable functions.
        device: where the ranks compute.
        most_ranks: the largest group to test.
    """
    silent = 0
    with tempfile.TemporaryDirectory(prefix="moeframe-kit-") as folder, RankPool(most_ranks, device=device) as pool:
        for trial in KITS[offer.kind](offer, device, Path(folder)):
            if trial.ranks > most_ranks:
                continue
            excluded = trial.excluded
            if silent >= _MOST_SILENT:
                excluded = excluded or f"{silent} checks had no answer within {_LIMIT_S:.0f} s"
            if excluded:
                yield Outcome(check=trial.check, ranks=trial.ranks, verdict="left out", message=excluded)
                continue
            try:
                pool.run(trial.call, world_size=trial.ranks, timeout=_LIMIT_S)
            except JobFailedError as error:
                silent += isinstance(error, RankTimeoutError)
                yield _failed(trial, error)
            else:
                yield Outcome(check=trial.check, ranks=trial.ranks, verdict="ok")


def _failed(trial: Trial, error: JobFailedError) -> Outcome:
    """Return that a trial failed, by what the first rank that failed says."""
    first = next(iter(error.failures.values())).traceback if isinstance(error, RankError) else str(error)
    return Outcome(
        check=trial.check,
        ranks=trial.ranks,
        verdict="FAILED",
        message=str(error).splitlines()[0],
        where=raised_at(first),
        details=str(error),
    )


def _dispatcher_trials(offer: Offer, device: Device, folder: Path) -> Iterator[Trial]:  # noqa: ARG001  one signature
    from moeframe.testing import dispatcher_checks as checks
    from moeframe.testing.workloads import WORKLOADS

    offer = cast("DispatcherOffer", offer)
    options = offer.options()
    exact = next(d for d in _DTYPES if d in offer.traits(options, Precision.of(d)).wire_dtypes)
    traits = offer.traits(options, Precision.of(exact))
    subject = partial(checks.Subject, offer=offer, options={}, device=device)

    def trial(name: str, call: Callable[[], None], *rules: tuple[bool, str]) -> Iterator[Trial]:
        excluded = "; ".join(why for applies, why in rules if applies)
        for size in _GROUP_SIZES:
            if traits.allows_group(size):
                yield Trial(check=name, ranks=size, call=call, excluded=excluded)

    for load in WORKLOADS.values():
        yield from trial(
            f"workload {load.name}",
            partial(checks.check_workload, subject(dtype=exact), load.name),
            (load.ragged and traits.needs_equal_tokens, "needs_equal_tokens"),
            (load.drops and not traits.supports_capacity_drop, "supports_capacity_drop is false"),
        )
    for dtype in _DTYPES:
        known = dtype in offer.traits(options, Precision.of(dtype)).wire_dtypes
        excluded = (not known, f"wire_dtypes leaves out {dtype}")
        yield from trial(
            f"rows in {dtype}", partial(checks.check_workload, subject(dtype=dtype), "hot_expert"), excluded
        )
        yield from trial(f"sums in {dtype}", partial(checks.check_accumulation, subject(dtype=dtype)), excluded)
    plain: tuple[tuple[str, Callable[[checks.Subject], None], tuple[bool, str]], ...] = (
        ("two dispatches in flight", checks.check_in_flight, (False, "")),
        ("one layout, several dispatches", checks.check_reused_layout, (False, "")),
        ("no graph without gradients", checks.check_no_grad, (False, "")),
        ("freed inputs", checks.check_freed_inputs, (False, "")),
        ("equal bits", checks.check_determinism, (not traits.deterministic, "deterministic is false")),
        ("static shapes", checks.check_static_shapes, (not traits.static_shapes, "static_shapes is false")),
        ("host syncs", checks.check_host_syncs, (False, "")),
        ("poisoned buffers", checks.check_poisoned_buffers, (False, "")),
        ("invalid ids", checks.check_invalid_ids, (device != "cpu", "looking at ids costs a host sync here")),
    )
    for name, check, rule in plain:
        yield from trial(name, partial(check, subject(dtype=exact)), rule)


def _sharding_trials(offer: Offer, device: Device, folder: Path) -> Iterator[Trial]:
    from moeframe.testing import sharding_checks as checks
    from moeframe.testing.sharding_bench import Subject
    from moeframe.testing.sharding_dtypes import check_dtypes

    offer = cast("ShardingOffer", offer)
    subject = Subject(offer=offer, options={}, device=device)
    traits = subject.traits()
    legal = [layout for layout in _LAYOUTS if _allows(traits, layout)]
    for layout in legal:
        for name, check in (
            ("gradients", checks.check_gradients),
            ("norm and clipping", checks.check_norm_and_clipping),
            ("three steps", checks.check_steps),
        ):
            yield _on(layout, name, partial(check, subject, layout))
    flat = [layout for layout in legal if layout.pp == 1]
    for layout in [layout for layout in flat if layout.world == max(other.world for other in flat)]:
        for count in (1, 4):
            call = partial(checks.check_gradients, subject, layout, micro_batches=count)
            yield _on(layout, f"{count} micro-batch(es)", call)
        for local in (1, 3):
            experts = local * layout.ep
            call = partial(checks.check_gradients, subject, layout, num_experts=experts)
            yield _on(layout, f"{experts} experts", call)
        yield _on(layout, "units called one by one", partial(checks.check_units, subject, layout))
        yield Trial(
            check=f"phases with a backward each, {_words(layout)}",
            ranks=layout.world,
            call=partial(checks.check_phases, subject, layout),
            excluded="" if traits.runs_phases else "runs_phases is false",
        )
        yield _on(layout, "several stages on a rank", partial(checks.check_stages, subject, layout))
        for dtype in _DTYPES:
            yield _on(layout, f"dtypes of {dtype}", partial(check_dtypes, subject, layout, dtype))
        yield Trial(
            check=f"whole parameters, {_words(layout)}",
            ranks=layout.world,
            call=partial(checks.check_whole_parameters, subject, layout),
            excluded="" if traits.parameters_stay_whole else "parameters_stay_whole is false",
        )
    for number, (saved, loaded) in enumerate(zip(flat, [*flat[1:], *flat[:1]], strict=True)):
        place = folder / str(number)
        yield _on(saved, "save", partial(checks.check_save, subject, saved, place, _SAVED_EXPERTS))
        call = partial(checks.check_load, subject, loaded, place, _SAVED_EXPERTS, saved=saved)
        yield _on(loaded, f"load of {_words(saved)}", call)


def _schedule_trials(offer: Offer, device: Device, folder: Path) -> Iterator[Trial]:  # noqa: ARG001  one signature
    from moeframe.testing import schedule_checks as checks

    subject = checks.Subject(offer=cast("ScheduleOffer", offer), options={}, device=device)
    yield Trial(check="plans", ranks=1, call=partial(checks.check_plans, subject))
    yield Trial(check="numbers of micro-batches", ranks=1, call=partial(checks.check_counts, subject))
    for size in (size for size in _GROUP_SIZES if size in checks.sizes_of(subject.traits, max(_GROUP_SIZES))):
        for name, check in (
            ("steps", checks.check_steps),
            ("evaluations", checks.check_evaluation),
            ("order", checks.check_order),
        ):
            yield Trial(check=name, ranks=size, call=partial(check, subject))


def _layout(world: int, ep: int, dp_replicate: int = 1, pp: int = 1) -> Degrees:
    return Degrees(world=world, pp=pp, dp_replicate=dp_replicate, ep=ep)


_LAYOUTS: Final = (
    _layout(1, 1),
    _layout(2, 1),
    _layout(2, 2),
    _layout(2, 1, 2),
    _layout(4, 1),
    _layout(4, 2),
    _layout(4, 4),
    _layout(4, 1, 2),
    _layout(4, 2, 2),
    _layout(4, 2, 1, 2),
    _layout(4, 1, 2, 2),
)
_SAVED_EXPERTS: Final = 12


def _allows(traits: ShardingTraits, layout: Degrees) -> bool:
    return (
        layout.data_ranks >= traits.min_data_ranks
        and (layout.dp_replicate == 1 or traits.supports_dp_replicate)
        and (layout.dp_replicate > 1 or not traits.needs_dp_replicate)
    )


def _words(layout: Degrees) -> str:
    sizes = (("pp", layout.pp), ("replicas", layout.dp_replicate), ("ep", layout.ep), ("edp", layout.edp_shard))
    return " x ".join(f"{name} {size}" for name, size in sizes if size > 1) or "one process"


def _on(layout: Degrees, name: str, call: Callable[[], None]) -> Trial:
    return Trial(check=f"{name}, {_words(layout)}", ranks=layout.world, call=call)


def _compute_trials(offer: Offer, device: Device, folder: Path) -> Iterator[Trial]:  # noqa: ARG001  one signature
    from moeframe.testing import compute_checks as checks

    offer = cast("ComputeOffer", offer)
    for dtype in _DTYPES:
        subject = checks.Subject(offer=offer, options={}, device=device, dtype=dtype)
        traits = subject.traits
        unknown = "" if dtype in traits.dtypes else f"dtypes leaves out {dtype}"

        def trial(name: str, check: Callable[..., None], *arguments: Any, excluded: str = "", **named: Any) -> Trial:
            call = partial(check, subject, *arguments, **named)  # noqa: B023  called before the next subject
            return Trial(check=f"{name} in {dtype}", ranks=1, call=call, excluded=unknown or excluded)  # noqa: B023

        yield trial("parameters", checks.check_parameters)
        for leading in ((2, 8), (3, 5), (0,)):
            yield trial(f"linear of {' x '.join(map(str, leading))} rows", checks.check_linear, leading)
        yield trial("norm", checks.check_norm)
        for name in checks.ROWS:
            for on_host in (True, False):
                known = "" if on_host else ", counts on the device"
                yield trial(f"experts, {name}{known}", checks.check_experts, name, on_host=on_host)
        for masked in (False, True):
            for size in (8, 16):
                words = f"attention, values of {size}{', masked' if masked else ''}"
                yield trial(words, checks.check_attention, size, masked=masked)
        yield trial(
            "freed rows", checks.check_freed_inputs, excluded="saves_expert_input" if traits.saves_expert_input else ""
        )
        yield trial("freed outputs", checks.check_freed_outputs)
        excluded = "" if traits.splits_expert_backward else "splits_expert_backward is false"
        yield trial("postponed weight gradients", checks.check_postponed_weights, excluded=excluded)


KITS: Final[dict[str, Callable[[Any, Device, Path], Iterator[Trial]]]] = {
    "dispatcher": _dispatcher_trials,
    "sharding": _sharding_trials,
    "schedule": _schedule_trials,
    "compute": _compute_trials,
}
"""The kits by kind of offer."""
