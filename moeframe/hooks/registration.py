"""What a plugin must be to be registered: checks of its hooks, its API version and its offers.

pluggy accepts much that could only be a mistake (a misspelt hook, another project's marker, ordering options that the
host ignores). Here each of these is an error, with the name that was meant.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Final

import pluggy

from moeframe.errors import PluginError
from moeframe.hooks import API_VERSION, PROJECT
from moeframe.hooks.kinds import KINDS, Kind
from moeframe.hooks.offers import Needs, Offer

__all__ = ["nearest", "read_offers", "require_api_version", "require_hooks"]

_NAME: Final = re.compile(r"[0-9]*[a-z][a-z0-9_]*")
_IGNORED_OPTIONS: Final = ("wrapper", "hookwrapper", "tryfirst", "trylast")


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the name of `names` that is most like `name`, None when there are none. Ties go to the first."""
    return max(names, key=lambda candidate: SequenceMatcher(None, name, candidate).ratio(), default=None)


def require_api_version(plugin: object, version: int = API_VERSION) -> None:
    """Raise PluginError when the plugin's ``moeframe_api`` excludes this version of the plugin contract."""
    demanded = getattr(plugin, "moeframe_api", None)
    if demanded is None:
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        allowed = SpecifierSet(demanded).contains(str(version))
    except (InvalidSpecifier, TypeError, AttributeError) as error:
        raise PluginError(f"moeframe_api = {demanded!r} is no version specifier. Write one such as '>=1'.") from error
    if not allowed:
        raise PluginError(
            f"it needs version {demanded} of moeframe's plugin API, and this moeframe has version {version}. "
            "Install a release of the plugin, or of moeframe, that fits the other.",
        )


def require_hooks(manager: pluggy.PluginManager, plugin: object, specs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the hooks that a plugin implements, checked; `specs` maps each hook to its arguments.

    Raises:
        PluginError: it implements none, or one that is misspelt, or takes arguments that the host will not pass.
    """
    marked: list[str] = []
    foreign: set[str] = set()
    for attribute in dir(plugin):
        options = manager.parse_hookimpl_opts(plugin, attribute)
        value = inspect.getattr_static(plugin, attribute, None)
        value = getattr(value, "__func__", value)
        if options is None:
            foreign.update(_other_projects(value))
            if attribute in specs:
                raise PluginError(f"{attribute} is not marked. Write @hookimpl (from moeframe.hooks) above it.")
            continue
        if attribute not in specs:
            if options.get("optionalhook"):
                continue
            raise PluginError(
                f"{attribute!r} is no hook. Did you mean {nearest(attribute, list(specs))!r}? "
                f"Hooks: {', '.join(sorted(specs))}.",
            )
        _require_plain_options(attribute, options)
        _require_arguments(attribute, getattr(plugin, attribute), specs[attribute])
        marked.append(attribute)
    if not marked:
        other = f" It carries the marker of {', '.join(sorted(foreign))}." if foreign else ""
        raise PluginError(
            f"it registers no hook.{other} Mark its hook functions with hookimpl from moeframe.hooks. "
            f"Hooks: {', '.join(sorted(specs))}.",
        )
    return marked


def _other_projects(value: object) -> set[str]:
    """Return the projects, other than this one, whose pluggy marker a function carries."""
    return {
        name.removesuffix("_impl")
        for name, mark in getattr(value, "__dict__", {}).items()
        if name.endswith("_impl") and isinstance(mark, Mapping) and "optionalhook" in mark and name != f"{PROJECT}_impl"
    }


def _require_plain_options(hook: str, options: Mapping[str, Any]) -> None:
    if options.get("specname"):
        raise PluginError(
            f"{hook!r} is declared with specname={options['specname']!r}. Give the function the hook's own name.",
        )
    for option in _IGNORED_OPTIONS:
        if options.get(option):
            raise PluginError(
                f"{hook!r} is declared with {option}=True, but the host calls implementations one by one in the order "
                "of their distributions. Remove the option.",
            )


def _require_arguments(hook: str, function: Callable[..., Any], allowed: tuple[str, ...]) -> None:
    """Check that a hook takes a subset of its arguments, by name and without defaults."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise PluginError(f"{hook!r} is a coroutine or a generator. Make it a plain function.")
    takes = f"{hook} takes {', '.join(allowed)}" if allowed else f"{hook} takes no argument"
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise PluginError(f"{hook!r}: {parameter} does not take an argument by name. {takes}; name those you need.")
        if parameter.name not in allowed:
            near = nearest(parameter.name, allowed)
            meant = f" Did you mean {near!r}?" if near else ""
            raise PluginError(f"{hook!r} has the unknown argument {parameter.name!r}.{meant} {takes}.")
        if parameter.default is not parameter.empty:
            raise PluginError(
                f"{hook!r}: the argument {parameter.name!r} has a default, which would decide whether it is passed. "
                "Remove the default; the host passes every argument that an implementation names.",
            )


def read_offers(hook: str, given: object) -> list[Offer]:
    """Return what an offer hook returned, checked.

    Raises:
        PluginError: it is no list or tuple of offers of the hook's kind, or an offer breaks a rule.
    """
    kind = next(kind for kind in KINDS.values() if kind.hook == hook)
    if not isinstance(given, list | tuple):
        raise PluginError(f"{hook} returned {_shown(given)}. Return a list of {kind.offer_class.__name__}.")
    offers: list[Offer] = []
    for offer in given:
        _require_offer(kind, offer)
        if offer.name in {other.name for other in offers}:
            raise PluginError(f"{hook} offers the name {offer.name!r} twice. A name stands for one offer.")
        offers.append(offer)
    return offers


def _require_offer(kind: Kind, offer: object) -> None:
    hook, wanted = kind.hook, kind.offer_class.__name__
    if not isinstance(offer, kind.offer_class):
        raise PluginError(f"{hook} returned {_shown(offer)} among its offers. Return only {wanted}.")
    name = offer.name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise PluginError(f"{hook}: the name {name!r} does not match {_NAME.pattern}. Rename the offer.")
    here = f"{kind.name} {name!r}"
    if not isinstance(offer.summary, str) or not offer.summary.strip() or len(offer.summary.splitlines()) != 1:
        raise PluginError(f"{here}: the summary {offer.summary!r} is not one line of text. Say in one line what it is.")
    callables = [field for field in ("build", "traits", "legal_micro_batches") if hasattr(offer, field)]
    for field in callables:
        if not callable(getattr(offer, field)):
            raise PluginError(f"{here}: {field} is {_shown(getattr(offer, field))}, not a function.")
    _require_options(here, offer.options)
    if not isinstance(offer.needs, Needs):
        raise PluginError(f"{here}: needs is {_shown(offer.needs)}, not a Needs.")
    _require_needs(here, offer.needs)


def _require_options(here: str, options: object) -> None:
    if not isinstance(options, type) or not dataclasses.is_dataclass(options):
        raise PluginError(f"{here}: options is {_shown(options)}, not a dataclass. Write a frozen dataclass.")
    parameters = getattr(options, "__dataclass_params__")  # noqa: B009  mypy does not know the attribute
    if not parameters.frozen:
        raise PluginError(f"{here}: the options dataclass {options.__name__} is not frozen. Add frozen=True.")
    for field in dataclasses.fields(options):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise PluginError(
                f"{here}: the option {field.name!r} has no default. Give every field of {options.__name__} one, "
                "so that a recipe may leave `options:` out.",
            )


def _require_needs(here: str, needs: Needs) -> None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    if not needs.device_kinds or not set(needs.device_kinds) <= {"cpu", "cuda"}:
        raise PluginError(f"{here}: needs.device_kinds is {needs.device_kinds!r}. Name one or both of 'cpu', 'cuda'.")
    for need in needs.modules:
        if need.version is None:
            continue
        try:
            SpecifierSet(need.version)
        except InvalidSpecifier as error:
            raise PluginError(
                f"{here}: needs version {need.version!r} of {need.name}, which is no version specifier. "
                "Write one such as '>=0.6,<0.7'.",
            ) from error


def _shown(value: object) -> str:
    """Return a value for a message, cut short."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
