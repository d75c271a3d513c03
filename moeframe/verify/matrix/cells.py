"""The cells of the matrix, from what the catalog offers: how each is run, or why it cannot be. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any, Final, get_args, get_type_hints

from moeframe.config.compose import Part, compose
from moeframe.config.dump import scalar_text
from moeframe.config.load import LoadedRecipe, with_overrides
from moeframe.config.schema import TrainConfig
from moeframe.errors import Problem, RecipeError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.offers import Offer
from moeframe.mesh.degrees import divisors
from moeframe.protocols.precision import Precision
from moeframe.verify.layouts import MOST_PROCESSES, Shape, legal_shapes
from moeframe.verify.provable import obstacles

__all__ = ["AXES", "DISTRIBUTION", "Cell", "axis_values", "key_of", "plan_cells"]

AXES: Final[Mapping[str, str]] = {
    "dispatcher": "dispatcher.name",
    "sharding": "sharding.name",
    "schedule": "schedule.name",
    "recompute": "train.recompute",
}
"""The dimensions of the matrix, and the recipe key that each one sets."""
DISTRIBUTION: Final = "moeframe"
"""Whose backends the matrix is about; what else is installed where it is made does not enter it."""
_KINDS: Final = ("dispatcher", "sharding", "schedule")

Key = tuple[str, ...]
"""A value on each of `AXES`, in their order."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination.

    `overrides`: over the base recipe, as `moeframe check` and `verify` take them. `refusal`: why it cannot be run,
    empty when it can be. `lacks_device`: it is refused for no other reason than that a backend does not run on a CPU.
    """

    key: Key
    overrides: tuple[str, ...]
    refusal: str = ""
    lacks_device: bool = False

    @property
    def title(self) -> str:
        """Its values in words."""
        return " x ".join(self.key)


def key_of(overrides: Sequence[str]) -> Key:
    """Return the values that overrides give the axes.

    Raises:
        ValueError: an axis has none, or two.
    """
    given = [text.partition("=")[::2] for text in overrides]
    found = []
    for path in AXES.values():
        values = [value for key, value in given if key == path]
        if len(values) != 1:
            raise ValueError(f"{' '.join(overrides)}: {path} must be given once, not {len(values)} times")
        found += values
    return tuple(found)


def plan_cells(base: LoadedRecipe, catalog: Catalog) -> list[Cell]:
    """Return every combination of what is offered, in the order of the catalog's names.

    Each gets the smallest parallel shape in which all that it combines is at work, as far as `MOST_PROCESSES` allow it:
    first the pipeline and the replicas that backends need, then expert parallelism, then more data ranks.
    """
    planner = _Planner(base, catalog)
    return [planner.cell(key) for key in product(*axis_values(catalog).values())]


def axis_values(catalog: Catalog) -> dict[str, list[str]]:
    """Return what is offered on each axis."""
    found = {
        kind: [record.name for record in catalog.offers(kind) if record.origin.distribution == DISTRIBUTION]
        for kind in _KINDS
    }
    return {**found, "recompute": list(get_args(get_type_hints(TrainConfig)["recompute"]))}


class _Planner:
    """Finds the overrides of cells."""

    def __init__(self, base: LoadedRecipe, catalog: Catalog) -> None:
        self._base, self._catalog = base, catalog

    def cell(self, key: Key) -> Cell:
        """Return one combination: runnable, or with the reason why not."""
        offers: dict[str, Any] = {
            kind: self._catalog.resolve(kind, name) for kind, name in zip(_KINDS, key, strict=False)
        }
        parts = {kind: _part(offer, {}) for kind, offer in offers.items()}
        lacking = [_sentence(part.offer, why) for part in parts.values() for why in obstacles(part)]
        traits = [part.traits for part in parts.values()]
        shapes = legal_shapes(*traits)
        reasons = lacking or ([] if shapes else [f"No layout of at most {MOST_PROCESSES} processes is legal."])
        shapes = sorted(shapes or legal_shapes(*traits, most=2 * MOST_PROCESSES), key=_liveliness, reverse=True)
        tried: list[tuple[list[Problem], dict[str, Any]]] = []
        for shape, options in product(shapes, _choices(offers["sharding"])):
            values = self._values(key, offers, options, shape)
            tried.append((self._problems(values), values))
            if not tried[-1][0] and not reasons:
                return Cell(key=key, overrides=_texts(values))
        # Refused for the least: where a device is missing, the rest of the recipe is as good as can be told from here.
        problems, values = min(tried, key=lambda one: len(one[0]))
        told = " ".join(reasons or (f"{one.path}: {one.message}" for one in problems))
        return Cell(key=key, overrides=_texts(values), refusal=told, lacks_device=bool(lacking))

    def _problems(self, values: Mapping[str, Any]) -> list[Problem]:
        """Return why a recipe with these values is refused on a CPU."""
        options = {key.partition(".")[0]: value for key, value in values.items() if key.endswith(".options")}
        plain = {key: value for key, value in values.items() if not key.endswith(".options")}
        recipe = with_overrides(self._base, plain, origin="matrix").recipe
        sections = {kind: replace(getattr(recipe, kind), options=options.get(kind, {})) for kind in _KINDS}
        try:
            compose(LoadedRecipe.of(replace(recipe, **sections)), self._catalog, device_kind="cpu")
        except RecipeError as error:
            return list(error.problems)
        return []

    def _values(self, key: Key, offers: Mapping[str, Any], options: Mapping[str, bool], shape: Shape) -> dict[str, Any]:
        """Return recipe values by dotted key: the axes, the parallel shape, and sizes that fit it."""
        schedule, recipe = offers["schedule"], self._base.recipe
        degrees = shape.degrees
        stages = degrees.pp * _part(schedule, {}).traits.stages_per_rank
        own = recipe.train.global_batch_size // degrees.data_ranks
        defaults = schedule.options()
        sizes = [n for n in divisors(own) if schedule.legal_micro_batches(defaults, degrees.pp, own // n) is None]
        values: dict[str, Any] = dict(zip(AXES.values(), key, strict=True))
        if options:
            values["sharding.options"] = dict(options)
        values |= {
            "parallel.pp": degrees.pp,
            "parallel.dp_replicate": degrees.dp_replicate,
            "parallel.ep": degrees.ep,
            "launch.nproc_per_node": degrees.world,
            "train.micro_batch_size": max((n for n in sizes if n < own), default=1),
        }
        if stages > recipe.model.num_hidden_layers:
            values["model.num_hidden_layers"] = stages
        return values


def _part(offer: Any, options: Mapping[str, bool]) -> Part[Any, Any]:
    typed = offer.options(**options)
    return Part(offer=offer, options=typed, traits=offer.traits(typed, Precision.of("float64")))


def _sentence(offer: Offer, why: str) -> str:
    """Return why a backend is refused, with all that it needs; the same on every machine."""
    needs = offer.needs
    wanted = [f"{need.distribution or need.name} {need.version or ''}".strip() for need in needs.modules]
    if needs.compute_capability is not None:
        wanted.append("compute capability {}.{}".format(*needs.compute_capability))
    more = f" (needs {', '.join(wanted)})" if wanted else ""
    return f"{offer.kind} {offer.name!r} {why}{more}."


def _liveliness(shape: Shape) -> tuple[bool, ...]:
    """Return what of a shape has more than one rank, and where that is alike, whether it is small."""
    return (shape.pp > 1, shape.dp_replicate > 1, shape.ep > 1, shape.edp_shard > 1, shape.ep <= 2)


def _choices(sharding: Offer) -> Iterator[Mapping[str, bool]]:
    """Yield the on-off options of a sharding: as they are by default, then with one of them the other way.

    They are spelled out, so that a base recipe's own options do not shine through.
    """
    defaults = {spec.name: spec.default for spec in fields(sharding.options) if isinstance(spec.default, bool)}
    yield defaults
    for name, value in defaults.items():
        yield {**defaults, name: not value}


def _texts(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return values as overrides; options one by one."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": one for name, one in value.items()}
        else:
            flat[key] = value
    return tuple(f"{key}={scalar_text(value)}" for key, value in flat.items())
