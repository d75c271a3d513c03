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
        device_kind: ``cpu`` or ``cuda``, what the job will run on; None when that is not known.
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
                names = _others(kind, composition, catalog, others, None if elsewhere else (device_kind,))
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


def _others(
    kind: str,
    composition: Composition,
    catalog: Catalog,
    allowed: set[FitRule],
    machine: tuple[str | None] | None,
) -> list[str]:
    """Return the other backends of a kind that mend a misfit with their default options.

    `machine` is the device of the job in a tuple; None for a job of another machine.
    """
    part: Any = getattr(composition, kind)
    names = []
    for name in catalog.names(kind):
        if name == part.offer.name:
            continue
        with suppress(
            PluginError, RecipeError, ValueError, TypeError, UnknownValueError
        ):  # it is broken, or must be given options
            offer = catalog.resolve(kind, name)
            if machine is not None and unusable_reasons(offer, device_kind=_device(composition, *machine)):
                continue
            options = offer.options()
            traits = offer.traits(options, composition.precision)  # type: ignore[attr-defined]
            other = replace(part, offer=offer, options=options, traits=traits)
            if _breaks_no_other(replace(composition, **{kind: other}), allowed):
                names.append(name)
    return names


def _device(composition: Composition, known: str | None) -> str | None:
    device = known or composition.recipe.launch.device
    return None if device == "auto" else device
