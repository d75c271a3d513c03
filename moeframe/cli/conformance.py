"""`moeframe plugins test`: the published conformance kit on one backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

import typer

from moeframe.config.substitutes import sentences
from moeframe.errors import PluginError, UnknownOfferError
from moeframe.hooks.catalog import Catalog, unusable_reasons
from moeframe.hooks.manager import build_plugin_manager
from moeframe.hooks.offers import Offer
from moeframe.verify.kits import KITS, Outcome, run_kit

__all__ = ["conformance"]

_RANKS: Final = 4
_NOT_ALL: Final = 3


def conformance(name: str, kind: str | None, plugins: Sequence[str] = (), *, as_json: bool = False) -> int:
    """Run the kit of an offer, print a line for each check, and return 0, 1 when one failed, 3 when none could run.

    Args:
        name: of the offer.
        kind: of the offer; None: the one kind that has a kit and an offer of that name.
        plugins: modules of plugins that nobody installed.
        as_json: print one JSON document in place of the lines.

    Raises:
        PluginError: there is no such offer or no kit for it, or it cannot be used here.
    """
    offer = _offer(Catalog(build_plugin_manager(plugins)), name, kind)
    device: Literal["cpu", "cuda"] = "cpu" if "cpu" in offer.needs.device_kinds else "cuda"
    reasons = unusable_reasons(offer, device_kind=device)
    if reasons:
        raise PluginError(f"{offer.kind} {name!r} cannot be tested here: {sentences(reasons)}")
    found: list[Outcome] = []
    for outcome in run_kit(offer, device=device, most_ranks=_most_ranks(device)):
        found.append(outcome)
        if not as_json:
            typer.echo(_line(outcome))
    failed, done = (sum(one.verdict == verdict for one in found) for verdict in ("FAILED", "ok"))
    if as_json:
        typer.echo(json.dumps(_data(offer, device, found), indent=2))
    else:
        left_out = len(found) - failed - done
        typer.echo(f"{offer.kind} {name!r} on {device}: {done} ok, {failed} failed, {left_out} left out")
    return 1 if failed else 0 if done else _NOT_ALL


def _offer(catalog: Catalog, name: str, kind: str | None) -> Offer:
    kits = ", ".join(KITS)
    if kind is not None and kind not in KITS:
        raise PluginError(f"--kind {kind}: there is no conformance kit for it. Kits: {kits}.")
    kinds = [one for one in KITS if name in catalog.names(one)] if kind is None else [kind]
    if len(kinds) > 1:
        raise PluginError(f"{name!r} is offered as {' and as '.join(kinds)}. Say which with --kind.")
    if not kinds:
        offered = {one: catalog.names(one) for one in KITS}
        raise UnknownOfferError(
            kind=kits,
            name=name,
            message=f"{name!r}: no plugin offers it as a kind that has a conformance kit. Offered: "
            + "; ".join(f"{one}: {', '.join(names) or 'nothing'}" for one, names in offered.items())
            + ".",
        )
    return catalog.resolve(kinds[0], name)


def _most_ranks(device: str) -> int:
    if device == "cpu":
        return _RANKS
    import torch

    return max(1, min(_RANKS, torch.cuda.device_count()))


def _line(outcome: Outcome) -> str:
    message = f"  {outcome.message}" if outcome.message else ""
    return f"{outcome.check:<42} {outcome.ranks} rank{'s' if outcome.ranks > 1 else ' '}  {outcome.verdict}{message}"


def _data(offer: Offer, device: str, found: Sequence[Outcome]) -> dict[str, Any]:
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
            }
            for one in found
        ],
    }
