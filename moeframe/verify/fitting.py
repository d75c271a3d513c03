"""A recipe whose numbers do not fit together yet, but whose parts may: `verify` shrinks the numbers anyway."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from moeframe.config.compose import Composition, compose
from moeframe.config.load import LoadedRecipe, with_overrides
from moeframe.errors import RecipeError
from moeframe.hooks.catalog import Catalog

__all__ = ["compose_to_prove"]

_SIZES: Final = ("parallel.", "launch.", "train.global_batch_size", "train.micro_batch_size")
"""Keys of problems that other numbers may solve."""
_MANY_LAYERS: Final = 64
_COUNTS: Final = (1, 2, 4, 8, 16, 32)


def compose_to_prove(loaded: LoadedRecipe, catalog: Catalog) -> tuple[Composition, tuple[str, ...]]:
    """Compose a recipe; where only sizes are in the way (processes, layers, batch), with sizes that fit.

    So `verify recipe.yaml schedule.name=zbv parallel.pp=2` proves that composition also where the recipe launches too
    few processes for it.

    Returns:
        The composition, and what to tell the reader about it.

    Raises:
        RecipeError: the recipe is wrong in another way, or no sizes were found that fit.
    """
    try:
        return compose(loaded, catalog), ()
    except RecipeError as error:
        refusal = error
    if loaded.problems or not all(problem.path.startswith(_SIZES) for problem in refusal.problems):
        raise refusal
    for changes in _changes(loaded):
        try:
            composition = compose(with_overrides(loaded, changes, origin="verify"), catalog)
        except RecipeError:
            continue
        problems = " ".join(str(problem) for problem in refusal.problems)
        sizes = ", ".join(f"{key}={value}" for key, value in changes.items())
        note = f"the recipe cannot be run as it stands; its composition is proved as if it had {sizes}. {problems}"
        return composition, (note,)
    raise refusal


def _changes(loaded: LoadedRecipe) -> Iterator[Mapping[str, int]]:
    """Yield sizes to try, the fewest changes first."""
    recipe = loaded.recipe
    parallel = recipe.parallel
    processes = parallel.pp * parallel.dp_replicate * parallel.ep
    layers = {"model.num_hidden_layers": max(recipe.model.num_hidden_layers, _MANY_LAYERS)}
    world = {"launch.nnodes": 1, "launch.nproc_per_node": processes}
    batches = [
        {"train.micro_batch_size": 1, "train.global_batch_size": processes // parallel.pp * count} for count in _COUNTS
    ]
    for some in ({}, layers):
        for more in ({}, world):
            yield {**some, **more}
            yield from ({**some, **more, **batch} for batch in batches)
