"""Whether the backends of a recipe can be proved here: on a CPU, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from moeframe.config.compose import Composition, Part
from moeframe.errors import PluginError, Problem, RecipeError
from moeframe.hooks.catalog import Catalog, unusable_reasons

__all__ = ["obstacles", "require_provable"]

_KINDS: Final = ("dispatcher", "sharding", "schedule", "compute")
_DTYPE: Final = "float64"


def require_provable(composition: Composition, catalog: Catalog) -> None:
    """Refuse backends that run on GPUs only or know no float64, all at once.

    Raises:
        RecipeError: with the reasons, and what can be named in their place.
    """
    problems = [
        Problem(
            path=f"{kind}.name",
            message=f"given {part.offer.name!r}; verify computes on the CPU in {_DTYPE}, and it {why}.",
            fix=_fix(kind, part, catalog),
        )
        for kind in _KINDS
        for part in (getattr(composition, kind),)
        for why in obstacles(part)
    ]
    if problems:
        raise RecipeError(problems)


def obstacles(part: Part[Any, Any]) -> Iterator[str]:
    """Yield what keeps a backend from being proved here, each the end of a sentence about it."""
    kinds = set(part.offer.needs.device_kinds) & set(getattr(part.traits, "device_kinds", ("cpu",)))
    if "cpu" not in kinds:
        yield f"runs on {' or '.join(sorted(part.offer.needs.device_kinds))} only"
        return
    for field in ("wire_dtypes", "dtypes"):
        dtypes = getattr(part.traits, field, (_DTYPE,))
        if _DTYPE not in dtypes:
            yield f"knows {', '.join(dtypes)} only"


def _fix(kind: str, part: Part[Any, Any], catalog: Catalog) -> str:
    usable = []
    for name in catalog.names(kind):
        try:
            offer = catalog.resolve(kind, name)
        except PluginError:
            continue
        if (
            name != part.offer.name
            and not name.startswith("verify_")
            and not unusable_reasons(offer, device_kind="cpu")
        ):
            usable.append(name)
    others = (
        f" Prove the rest of the recipe with {', '.join(f'{kind}.name={name}' for name in usable)}." if usable else ""
    )
    return f"Its own proof is its conformance kit on a GPU (`moeframe plugins test {part.offer.name}`).{others}"
