"""A loaded recipe meets the backends it names: parts resolved, options typed, traits known, all of it checked."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from moeframe.config.load import LoadedRecipe
from moeframe.config.machine import Machine
from moeframe.config.moot import moot_problems
from moeframe.config.options import typed_options
from moeframe.config.part import Part
from moeframe.config.paths import with_absolute_paths
from moeframe.config.problems import in_order, located
from moeframe.config.rules import degrees_of, recipe_problems
from moeframe.config.schema import BACKEND_SECTIONS, Recipe
from moeframe.config.substitutes import Substitution, effective, named_substitute, of_substitutes, sentences
from moeframe.config.typed import HOLE, UnknownValueError
from moeframe.config.ways_out import WaysOut
from moeframe.errors import PluginError, Problem, RecipeError, TopologyError
from moeframe.hooks.catalog import Catalog
from moeframe.hooks.offers import ComputeOffer, DatasetOffer, DispatcherOffer, Offer, ScheduleOffer, ShardingOffer
from moeframe.mesh.degrees import Degrees
from moeframe.protocols.compute import ComputeTraits
from moeframe.protocols.data import DatasetTraits
from moeframe.protocols.dispatcher import DispatcherTraits
from moeframe.protocols.paths import path_rule
from moeframe.protocols.precision import Precision
from moeframe.protocols.schedule import ScheduleTraits
from moeframe.protocols.sharding import ShardingTraits

__all__ = ["Composition", "Part", "compose"]


@dataclass(frozen=True, kw_only=True)
class Composition:
    """A recipe whose parts are known to fit."""

    recipe: Recipe
    degrees: Degrees
    precision: Precision
    dispatcher: Part[DispatcherOffer, DispatcherTraits]
    sharding: Part[ShardingOffer, ShardingTraits]
    schedule: Part[ScheduleOffer, ScheduleTraits]
    compute: Part[ComputeOffer, ComputeTraits]
    data: Part[DatasetOffer, DatasetTraits]
    substitutions: tuple[Substitution, ...] = ()
    """Parts that are not the ones that the recipe names, because this machine cannot use those."""

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of one rank in one step."""
        train = self.recipe.train
        return train.global_batch_size // (self.degrees.data_ranks * train.micro_batch_size)

    @property
    def num_stages(self) -> int:
        """Pipeline stages of the model, over all ranks."""
        return self.degrees.pp * self.schedule.traits.stages_per_rank

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one step, over all ranks."""
        return self.recipe.train.global_batch_size * self.recipe.train.seq_len


def compose(
    loaded: LoadedRecipe,
    catalog: Catalog,
    *,
    world_size: int | None = None,
    device_kind: str | None = None,
    elsewhere: bool = False,
) -> Composition:
    """Resolve, check and return every part of a job. Imports no torch and starts nothing.

    Args:
        loaded: a recipe; with problems of its own they are raised together with those found here.
        catalog: what the plugins offer.
        world_size: processes that a launcher has started; None when nothing has.
        device_kind: ``cpu`` or ``cuda``, what the job will run on; None when that is not known yet.
        elsewhere: the job will run on another machine, so what this one lacks is no problem, and nothing is replaced.

    Raises:
        RecipeError: with every problem. When a plugin is the cause, its error is the ``__cause__``.
        TopologyError: nothing is wrong but the number of processes.
        PluginError: a plugin's check of the recipe raised.
    """
    composer = _Composer(loaded, catalog, Machine(device_kind=device_kind, elsewhere=elsewhere))
    composition = composer.compose()
    topology = _topology_problem(loaded.recipe, world_size)
    if topology is not None:
        composer.problems += [topology] if composer.problems else []
    first = {f"{kind}.name" for kind in composer.unusable}
    problems = in_order([*loaded.problems, *located(composer.problems, loaded.provenance)], first=first)
    if problems:
        raise RecipeError(problems) from composer.cause
    if topology is not None:
        raise TopologyError(f"{topology.message} {topology.fix}")
    return composition


class _Composer:
    """Collects the parts and every problem with them."""

    def __init__(self, loaded: LoadedRecipe, catalog: Catalog, machine: Machine) -> None:
        """Start with no part."""
        self.loaded = loaded
        self.recipe = loaded.recipe
        self.catalog = catalog
        self.machine = machine
        self.problems: list[Problem] = []
        self.substitutions: list[Substitution] = []
        self.unused: dict[str, Part[Any, Any]] = {}
        self.unusable: dict[str, Offer] = {}
        """The backends that cannot be used here, by kind; why is told before what else does not fit."""
        self.cause: Exception | None = None

    def compose(self) -> Composition:
        """Return the composition; a part that is not to be had is a `HOLE`."""
        self.problems += recipe_problems(self.recipe)
        self._guarded(lambda: self.problems.extend(moot_problems(self.recipe, self.loaded.provenance)))
        degrees = self._guarded(self._degrees)
        precision = self._guarded(lambda: Precision.of(self.recipe.train.precision))
        parts: dict[str, Any] = {kind: self._guarded(self._part, kind, precision) for kind in BACKEND_SECTIONS}
        self.recipe = _with_paths_of({**parts, **self.unused}, self.recipe)
        composition = Composition(
            recipe=self.recipe,
            degrees=degrees,
            precision=precision,
            substitutions=tuple(self.substitutions),
            **parts,
        )
        ways = WaysOut(composition, self.catalog, self.machine)
        self.problems += [ways.unusable(kind, offer) for kind, offer in self.unusable.items()]
        self.problems += of_substitutes([*ways.misfits(), *ways.other_devices()], self.substitutions)
        if not any(part is HOLE for part in parts.values()) and not self.loaded.problems:
            self._ask_plugins()
        return composition

    def _guarded(self, call: Any, *arguments: Any) -> Any:
        """Return what a call returns, `HOLE` when it touched an unreadable value."""
        try:
            return call(*arguments)
        except UnknownValueError:
            return HOLE

    def _degrees(self) -> Degrees:
        """Return the degrees of a layout that works out."""
        degrees = degrees_of(self.recipe)
        if degrees.problems(self.recipe.model.n_routed_experts):
            raise UnknownValueError
        return degrees

    def _part(self, kind: str, precision: Precision) -> Part[Any, Any]:
        """Resolve one backend, or what the recipe names in place of one that cannot be used here."""
        section = getattr(self.recipe, kind)
        name = str(section.name)
        offer = self._resolved(kind, name, f"{kind}.name")
        path = f"{kind}.options"
        if self.machine.elsewhere:
            return self._typed(kind, offer, path, precision)
        substitute = self._substitute(kind, offer)
        if substitute is not None:
            self.unused[kind] = self._typed(kind, offer, path, precision)  # its options must be right all the same
            return self._with_traits(substitute, substitute.options(), f"on_unavailable.{kind}", precision)
        if self.machine.obstacles(offer):
            self.unusable[kind] = offer
        return self._typed(kind, offer, path, precision)

    def _resolved(self, kind: str, name: str, path: str) -> Offer:
        """Return the offer of a name that stands at `path`."""
        try:
            return self.catalog.resolve(kind, name)
        except PluginError as error:
            self.cause = self.cause or error
            self._complain(path, str(error).removeprefix(f"{kind}.name = "), "")
            raise UnknownValueError from error

    def _substitute(self, kind: str, offer: Offer) -> Offer | None:
        """Return what takes the place of an offer; None where nothing is named, or nothing has to."""
        name, path = named_substitute(self.recipe, kind), f"on_unavailable.{kind}"
        if name is None or name == offer.name:
            return None
        other = self._resolved(kind, name, path)
        reasons = self.machine.obstacles(offer, self.recipe)
        if not reasons:
            return None
        obstacles = self.machine.obstacles(other, self.recipe)
        if obstacles:
            self._complain(path, f"{name!r} cannot be used here either: {sentences(obstacles)}", "")
            return None
        self.substitutions.append(Substitution(kind=kind, wanted=offer.name, used=name, reasons=reasons))
        return other

    def _typed(self, kind: str, offer: Offer, path: str, precision: Precision) -> Part[Any, Any]:
        """Return a backend with the options that the recipe gives it."""
        section, name = getattr(self.recipe, kind), offer.name
        if section.options is HOLE:
            raise UnknownValueError
        options, problems = typed_options(
            offer.options, section.options, path, self.loaded.provenance, owner=f"{kind} {name!r}"
        )
        known = {problem.path for problem in self.loaded.problems}
        self.problems += [problem for problem in problems if problem.path not in known]
        if problems or options is HOLE:
            raise UnknownValueError
        return self._with_traits(offer, with_absolute_paths(options, path, self.loaded.provenance), path, precision)

    def _with_traits(self, offer: Offer, options: Any, path: str, precision: Precision) -> Part[Any, Any]:
        """Return a backend with its traits; `path` is what to blame when it states none for these options."""
        try:
            traits = offer.traits(options, precision)  # type: ignore[attr-defined]
        except RecipeError as error:
            self.problems += error.problems
            raise UnknownValueError from error
        except (UnknownValueError, ValueError) as error:
            if isinstance(error, ValueError):
                self._complain(path, f"{offer.kind} {offer.name!r} refuses its options: {error}", "")
            raise UnknownValueError from error
        return Part(offer=offer, options=options, traits=traits)

    def _ask_plugins(self) -> None:
        """Run the plugins' own checks of the recipe."""
        try:
            answers = self.catalog.host.call_each(
                "moeframe_check_recipe", recipe=effective(self.recipe, self.substitutions)
            )
        except PluginError:
            if self.problems:
                return  # a check may fail on a recipe that is wrong already
            raise
        for answer in answers:
            for problem in answer.value:
                if not isinstance(problem, Problem):
                    raise PluginError(
                        f"plugin {answer.plugin!r} returned {problem!r} from moeframe_check_recipe; each entry must be "
                        "a moeframe.errors.Problem."
                    )
                self.problems.append(problem)

    def _complain(self, path: str, message: str, fix: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(path=path, message=message, fix=fix))


def _with_paths_of(parts: dict[str, Any], recipe: Recipe) -> Recipe:
    """Return the recipe with the absolute paths that the typed options of its parts have."""
    for kind, part in parts.items():
        if part is HOLE:
            continue
        section = getattr(recipe, kind)
        named = {spec.name for spec in fields(part.options) if path_rule(spec.metadata)}
        if named.intersection(section.options):
            options = {
                key: getattr(part.options, key) if key in named else value for key, value in section.options.items()
            }
            recipe = replace(recipe, **{kind: replace(section, options=options)})
    return recipe


def _topology_problem(recipe: Recipe, world_size: int | None) -> Problem | None:
    """Return what is wrong with the number of processes that a launcher started."""
    try:
        wanted, launch = recipe.world_size, recipe.launch
        if world_size is None or world_size == wanted:
            return None
        degrees = degrees_of(recipe)
        layout = ""
        if not degrees.problems(recipe.model.n_routed_experts):
            layout = (
                f" = pp {degrees.pp} x dp_replicate {degrees.dp_replicate} x dp_shard {degrees.dp_shard} "
                f"(ep {degrees.ep} x edp {degrees.edp} = {degrees.data_ranks} data ranks)"
            )
        return Problem(
            path="launch.nproc_per_node",
            message=f"{world_size} process(es) were started, and the recipe wants {wanted} (launch.nnodes "
            f"{launch.nnodes} x launch.nproc_per_node {launch.nproc_per_node}){layout}.",
            fix=f"Start {wanted}, or override the launch section, such as launch.nnodes=1 "
            f"launch.nproc_per_node={world_size}, and the degrees with it.",
        )
    except UnknownValueError:
        return None
