"""`moeframe plugins test`: the published conformance kit on one backend."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal

import typer

from moeframe.cli.progress import ProgressLine
from moeframe.cli.wrapping import for_reader
from moeframe.config.misfit import counted
from moeframe.config.substitutes import sentences
from moeframe.errors import PluginError, UnknownOfferError
from moeframe.hooks.catalog import Catalog, unusable_reasons
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.offers import Offer
from moeframe.verify.alike import Causes
from moeframe.verify.kits import KITS, Outcome, run_kit

__all__ = ["conformance"]

_RANKS: Final = 4
_NOT_ALL: Final = 3


def conformance(
    name: str, kind: str | None, plugins: Sequence[str] = (), *, every: bool = False, as_json: bool = False
) -> int:
    """Run the kit of an offer, print what came of it, and return 0, 1 when a check failed, 3 when none could run.

    Args:
        name: of the offer.
        kind: of the offer; None: the one kind that has a kit and an offer of that name.
        plugins: modules of plugins that nobody installed.
        every: print a line for each failure; without it, for the first of those that are alike.
        as_json: print one JSON document in place of the lines.

    Raises:
        PluginError: there is no such offer or no kit for it, or it cannot be used here.
    """
    offer = _offer(Catalog(build_plugin_manager(plugins)), name, kind)
    device: Literal["cpu", "cuda"] = "cpu" if "cpu" in offer.needs.device_kinds else "cuda"
    reasons = unusable_reasons(offer, device_kind=device)
    if reasons:
        raise PluginError(f"{offer.kind} {name!r} cannot be tested here: {sentences(reasons)}")
    found, causes = [], Causes()
    progress = ProgressLine(sys.stderr, terminal_only=True)
    for outcome in run_kit(offer, device=device, most_ranks=_most_ranks(device)):
        found.append(outcome)
        progress.clear()
        cause = causes.add(outcome) if outcome.verdict == "FAILED" else None
        if not as_json and (every or cause is None or len(cause.outcomes) == 1):
            typer.echo(_line(outcome, "" if cause is None else f"{cause.number}. "))
        progress.show(f"{counted(len(found), 'check')} after {{time}}, {_failed(found)} failed")
    progress.clear()
    if as_json:
        typer.echo(json.dumps(_data(offer, device, found, causes), indent=2))
    else:
        for line in _summary(offer, device, found, causes, every=every):
            typer.echo(for_reader(line, sys.stdout))
    return 1 if causes else 0 if any(one.verdict == "ok" for one in found) else _NOT_ALL


def _summary(offer: Offer, device: str, found: Collection[Outcome], causes: Causes, *, every: bool) -> Iterator[str]:
    """Yield what failed, by causes, and how many checks came out in which way."""
    good_on = {one.ranks for one in found if one.verdict == "ok"}
    if causes:
        yield ""
        yield "What is wrong, in the order to look at it (an early one is often the cause of a later one):"
        for cause in causes:
            yield from (f"  {line}" for line in cause.lines(good_on))
        hidden = "" if every else "--all shows every failure, "
        yield f"  ({hidden}--json the tracebacks of all ranks)"
        yield ""
    failed, done = _failed(found), sum(one.verdict == "ok" for one in found)
    left_out = len(found) - failed - done
    yield f"{offer.kind} {offer.name!r} on {device}: {done} ok, {failed} failed, {left_out} left out"


def _failed(found: Collection[Outcome]) -> int:
    return sum(one.verdict == "FAILED" for one in found)


def _offer(catalog: Catalog, name: str, kind: str | None) -> Offer:
    kits = ", ".join(KITS)
    if kind is not None and kind not in KITS:
        raise PluginError(f"--kind {kind}: there is no conformance kit for it. Kits: {kits}.")
    kinds = [one for one in KITS if name in catalog.names(one)] if kind is None else [kind]
    if len(kinds) > 1:
        raise PluginError(f"{name!r} is offered as {' and as '.join(kinds)}. Say which with --kind.")
    if not kinds:
        offered = {one: catalog.names(one) for one in KITS}
        near = get_close_matches(name, [one for names in offered.values() for one in names], n=1)
        raise UnknownOfferError(
            kind=kits,
            name=name,
            message=f"{name!r}: no plugin offers it as a kind that has a conformance kit. Offered: "
            + "; ".join(f"{one}: {', '.join(names) or 'nothing'}" for one, names in offered.items())
            + "."
            + (f" Did you mean {near[0]!r}?" if near else ""),
        )
    return catalog.resolve(kinds[0], name)


def _most_ranks(device: str) -> int:
    if device == "cpu":
        return _RANKS
    import torch

    return max(1, min(_RANKS, torch.cuda.device_count()))


def _line(outcome: Outcome, number: str) -> str:
    message = f"  {number}{outcome.message}" if outcome.message else ""
    return f"{outcome.check:<42} {outcome.ranks} rank{'s' if outcome.ranks > 1 else ' '}  {outcome.verdict}{message}"


def _data(offer: Offer, device: str, found: Collection[Outcome], causes: Causes) -> dict[str, Any]:
    number = {id(one): cause.number for cause in causes for one in cause.outcomes}
    return {
        "kind": offer.kind,
        "name": offer.name,
        "device": device,
        "checks": [
            {
                "check": one.check,
                "ranks": one.ranks,
                "verdict": one.verdict.lower(),
                "message": one.message or None,
                "cause": number.get(id(one)),
                "details": one.details or None,
            }
            for one in found
        ],
        "causes": [
            {
                "number": cause.number,
                "message": cause.message,
                "raised_at": cause.outcomes[0].where or None,
                "checks": len(cause.outcomes),
            }
            for cause in causes
        ],
    }
