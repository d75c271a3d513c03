"""What else a recipe could say where its parts do not fit; layouts and backends are tried before they are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from moeframe.config.fit import FIT_RULES
from moeframe.config.layouts import layouts, settings
from moeframe.config.machine import Machine, device_kinds
from moeframe.config.misfit import FitRule, Misfit, one_of, setting
from moeframe.config.part import Part
from moeframe.config.rules import degrees_of
from moeframe.config.schema import BACKEND_SECTIONS, OnUnavailableConfig
from moeframe.config.substitutes import effective, sentences
from moeframe.config.typed import HOLE, UnknownValueError
from moeframe.errors import PluginError, Problem, RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.offers import Offer

if TYPE_CHECKING:
    from moeframe.config.compose import Composition

__all__ = ["WaysOut"]


@dataclass(frozen=True, kw_only=True)
class _Other:
    """Another backend that fits; `sure`: no rule touched a value that could not be read."""

    name: str
    sure: bool


class WaysOut:
    """Problems of a composition that its parts have with each other or with the machine, and what mends them."""

    def __init__(self, composition: Composition, catalog: Catalog, machine: Machine) -> None:
        """Find what does not fit.

        Args:
            composition: may have unreadable values; rules that touch one stop there.
            catalog: whose backends may be named.
            machine: which of them can be used.
        """
        self._composition, self._catalog, self._machine = composition, catalog, machine
        self._found = {rule: misfits for rule in FIT_RULES if (misfits := _judged(rule, composition)[0])}

    def misfits(self) -> Iterator[Problem]:
        """Yield what does not fit, each with settings that were seen to mend it without breaking another rule."""
        for rule, misfits in self._found.items():
            allowed = set(self._found) - {rule}
            for misfit in misfits:
                ways = [*misfit.ways, *_layout_way(misfit, self._composition, allowed)]
                for kind in misfit.kinds:
                    ways += setting(f"{kind}.name", [other.name for other in self._others(kind, allowed)])
                fix = f"Use {'; or '.join(ways)}." if ways else misfit.otherwise
                yield Problem(path=misfit.path, message=misfit.message, fix=fix)

    def unusable(self, kind: str, offer: Offer) -> Problem:
        """Return that this machine cannot use the backend that the recipe names, and what it can use in its place."""
        others = list(self._others(kind, set(self._found), without=offer.name))
        ways = setting(f"{kind}.name", [other.name for other in others])
        if others and kind in {spec.name for spec in fields(OnUnavailableConfig)}:
            ways.append(f"on_unavailable.{kind}={others[0].name}, which is used wherever {offer.name!r} cannot be")
        fix = ["Nothing is chosen in its place."]
        if ways:
            fix.append(f"Use {'; or '.join(ways)}.")
            if not all(other.sure for other in others):
                fix.append("Whether they fit shows in full when the other problems are solved.")
        else:
            fix.append(f"No other {kind} fits this recipe here (`moeframe plugins` lists them).")
        if self._machine.device_of(self._composition.recipe) in (None, *offer.needs.device_kinds):
            fix.append("`moeframe plan` checks this recipe for a machine that has what is missing.")
        message = f"{offer.name!r} cannot be used here: {sentences(self._machine.obstacles(offer))}"
        return Problem(path=f"{kind}.name", message=message, fix=" ".join(fix))

    def other_devices(self) -> Iterator[Problem]:
        """Yield the backends that do not run on the device of the job."""
        recipe = self._composition.recipe
        device = self._machine.device_of(recipe)
        parts: dict[str, Any] = {
            kind: part for kind in BACKEND_SECTIONS if (part := getattr(self._composition, kind)) is not HOLE
        }
        legal = {kind: device_kinds(part.offer, part.traits) for kind, part in parts.items()}
        for kind, part in parts.items():
            if device is None or device in legal[kind] or self._machine.obstacles(part.offer):
                continue
            name, only = part.offer.name, one_of(legal[kind])
            others = setting(f"{kind}.name", [other.name for other in self._others(kind, set(self._found))])
            if self._machine.device_kind is None:
                common = [one for one in legal[kind] if all(one in each for each in legal.values())]
                path, message = "launch.device", f"given {device}; {kind} {name!r} runs on {only} only."
                ways = [*setting("launch.device", common), *others]
            else:
                path, message = f"{kind}.name", f"{name!r} runs on {only} only, and this job on {device}."
                ways = [*others, f"a machine with a {only} device"]
            fix = f"Use {'; or '.join(ways)}." if ways else f"Name another {kind} (`moeframe plugins` lists them)."
            yield Problem(path=path, message=message, fix=fix)

    def _others(self, kind: str, broken: set[FitRule], without: str | None = None) -> Iterator[_Other]:
        """Yield the other backends of a kind that fit with their default options.

        Args:
            kind: of the backend to replace.
            broken: rules that may stay broken, unless it is this backend that breaks them.
            without: name of that backend; None: the one of the composition.
        """
        name = getattr(self._composition, kind).offer.name if without is None else without
        allowed = {rule for rule in broken if not any(kind in misfit.kinds for misfit in self._found[rule])}
        for other in self._catalog.names(kind):
            if other != name and (tried := self._with(kind, other)) is not None:
                judged = [_judged(rule, tried) for rule in FIT_RULES if rule not in allowed]
                if not any(found for found, _ in judged) and not self._refused_by_plugins(tried):
                    yield _Other(name=other, sure=all(sure for _, sure in judged))

    def _with(self, kind: str, name: str) -> Composition | None:
        """Return the composition with another backend; None for one that is broken, unusable or must have options."""
        composition = self._composition
        with suppress(PluginError, RecipeError, ValueError, TypeError, UnknownValueError):
            offer: Any = self._catalog.resolve(kind, name)
            options = offer.options()
            traits = offer.traits(options, composition.precision)
            if self._machine.takes(offer, traits, composition.recipe):
                section = replace(getattr(composition.recipe, kind), name=name, options={})
                part: dict[str, Any] = {kind: Part(offer=offer, options=options, traits=traits)}
                return replace(
                    composition,
                    recipe=replace(composition.recipe, **{kind: section}),
                    substitutions=tuple(one for one in composition.substitutions if one.kind != kind),
                    **part,
                )
        return None

    def _refused_by_plugins(self, tried: Composition) -> bool:
        """Whether a plugin's own check refuses what it does not refuse now."""
        objections = self._objections(tried)
        return bool(objections) and bool(objections - self._known_objections)

    @cached_property
    def _known_objections(self) -> set[tuple[str, str]]:
        return self._objections(self._composition)

    def _objections(self, composition: Composition) -> set[tuple[str, str]]:
        recipe = effective(composition.recipe, composition.substitutions)
        with suppress(PluginError):  # a check may fail on a recipe with unreadable values
            answers = self._catalog.host.call_each("moeframe_check_recipe", recipe=recipe)
            return {(problem.path, problem.message) for answer in answers for problem in answer.value}
        return set()


def _judged(rule: FitRule, composition: Composition) -> tuple[list[Misfit], bool]:
    """Return what a rule finds, and whether it came to its end before it touched an unreadable value."""
    found: list[Misfit] = []
    with suppress(UnknownValueError):
        found.extend(rule(composition))
        return found, True
    return found, False


def _layout_way(misfit: Misfit, composition: Composition, allowed: set[FitRule]) -> Iterator[str]:
    """Yield the settings of the first layout that mends the misfit."""
    recipe = composition.recipe
    for wanted in misfit.layouts:
        with suppress(UnknownValueError):
            for candidate in layouts(recipe, wanted):
                tried = replace(composition, recipe=candidate, degrees=degrees_of(candidate))
                breaks = any(_judged(rule, tried)[0] for rule in FIT_RULES if rule not in allowed)
                if candidate != recipe and not breaks:
                    yield settings(recipe, candidate)
                    return
