"""What else a recipe could say where its parts do not fit; layouts and backends are tried before they are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moeframe.config.fit import FIT_RULES
from moeframe.config.layouts import layouts, settings
from moeframe.config.misfit import FitRule, Misfit, setting
from moeframe.config.rules import degrees_of
from moeframe.config.typed import UnknownValueError
from moeframe.errors import PluginError, Problem, RecipeError
from moeframe.hooks.catalog import Catalog, unusable_reasons
from moeframe.hooks.offers import Offer

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["fit_problems"]


def fit_problems(
    composition: Composition, catalog: Catalog, *, device_kind: str | None = None, elsewhere: bool = False
) -> list[Problem]:
    """Return what does not fit, each with settings that were seen to mend it without breaking another rule.

    Args:
        composition: may have unreadable values; rules that touch one stop there.
        catalog: whose backends may be named.
        device_kind: ``cpu`` or ``cuda``, what the job will run on; None when that is not known, or cannot be read.
        elsewhere: the job will run on another machine, so what this one lacks does not matter.
    """
    found = {rule: misfits for rule in FIT_RULES if (misfits := _misfits(rule, composition))}
    problems = []
    for rule, misfits in found.items():
        allowed = set(found) - {rule}
        for misfit in misfits:
            ways = [*misfit.ways, *_layout_way(misfit, composition, allowed)]
            for kind in misfit.kinds:
                others = {other for other in allowed if not any(kind in one.kinds for one in found[other])}
                names = [
                    offer.name
                    for offer in _others(kind, composition, catalog, others)
                    if elsewhere or not unusable_reasons(offer, device_kind=device_kind)
                ]
                ways += setting(f"{kind}.name", names)
            fix = f"Use {'; or '.join(ways)}." if ways else misfit.otherwise
            problems.append(Problem(path=misfit.path, message=misfit.message, fix=fix))
    return problems


def _misfits(rule: FitRule, composition: Composition) -> list[Misfit]:
    """Return what a rule finds before it touches an unreadable value."""
    found: list[Misfit] = []
    with suppress(UnknownValueError):
        found.extend(rule(composition))
    return found


def _breaks_no_other(composition: Composition, allowed: set[FitRule]) -> bool:
    """Whether a composition breaks none but the rules that are broken anyway."""
    return not any(_misfits(rule, composition) for rule in FIT_RULES if rule not in allowed)


def _layout_way(misfit: Misfit, composition: Composition, allowed: set[FitRule]) -> Iterator[str]:
    """Yield the settings of the first layout that mends the misfit."""
    recipe = composition.recipe
    for wanted in misfit.layouts:
        with suppress(UnknownValueError):
            for candidate in layouts(recipe, wanted):
                tried = replace(composition, recipe=candidate, degrees=degrees_of(candidate))
                if candidate != recipe and _breaks_no_other(tried, allowed):
                    yield settings(recipe, candidate)
                    return


def _others(kind: str, composition: Composition, catalog: Catalog, allowed: set[FitRule]) -> Iterator[Offer]:
    """Yield the other backends of a kind that mend a misfit with their default options."""
    part: Any = getattr(composition, kind)
    for name in catalog.names(kind):
        if name == part.offer.name:
            continue
        # It is broken, or must be given options.
        with suppress(PluginError, RecipeError, ValueError, TypeError, UnknownValueError):
            offer: Any = catalog.resolve(kind, name)
            options = offer.options()
            other = replace(part, offer=offer, options=options, traits=offer.traits(options, composition.precision))
            if _breaks_no_other(replace(composition, **{kind: other}), allowed):
                yield offer
