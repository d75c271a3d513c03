"""A recipe with the story of every value. The text is a recipe again: what is not one of its keys is a comment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from moeframe.config.compose import Composition
from moeframe.config.dump import scalar_text
from moeframe.config.load import LoadedRecipe
from moeframe.config.moot import moot_keys
from moeframe.config.near_keys import did_you_mean, near_keys
from moeframe.config.schema import BACKEND_SECTIONS
from moeframe.config.substitutes import sentences
from moeframe.config.tree import join
from moeframe.errors import UserInputError
from moeframe.model.counts import count_parameters

__all__ = ["explain"]


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One line. `value` is None for a section; a row that is not `given` follows from others."""

    path: str
    value: str | None
    story: str = ""
    given: bool = True


def explain(loaded: LoadedRecipe, composition: Composition | None = None, key: str | None = None) -> str:
    """Return every value with its origin: a place in a file, an override, a default, or what it is derived from.

    Args:
        loaded: a recipe without problems.
        composition: adds what is derived, and the defaults of options.
        key: a dotted key or a section; None for the whole recipe. Derived values have keys too (``parallel.edp``).

    Raises:
        UserInputError: there is no such key.
    """
    rows = list(_rows(loaded, composition))
    if key is None:
        return "\n".join([_heading(loaded), *_aligned([(_indented(row), row.story) for row in rows])])
    chosen = [row for row in rows if row.path == key or row.path.startswith(f"{key}.")]
    if not chosen:
        raise UserInputError(_no_such_key(key, [row.path for row in rows]))
    return "\n".join(_aligned([(f"{row.path}: {row.value}", row.story) for row in chosen if row.value is not None]))


def _heading(loaded: LoadedRecipe) -> str:
    """Return which files and overrides made the recipe."""
    *bases, own = loaded.provenance.files or ("a recipe made in Python",)
    parts = [own] + ([f"over {', then '.join(reversed(bases))}"] if bases else [])
    parts += [f"with {' '.join(loaded.overrides)}"] if loaded.overrides else []
    return f"# {' '.join(parts)}"


def _aligned(lines: list[tuple[str, str]]) -> Iterator[str]:
    """Yield lines with their stories in one column."""
    width = min(max((len(text) for text, story in lines if story), default=0), 60)
    for text, story in lines:
        yield f"{text:<{width}}  # {story}" if story else text


def _indented(row: _Row) -> str:
    """Return a row as a line of YAML."""
    *parents, name = row.path.split(".")
    text = f"{name}:" if row.value is None else f"{name}: {row.value}"
    return "  " * len(parents) + (text if row.given else f"# {text}")


def _rows(loaded: LoadedRecipe, composition: Composition | None) -> Iterator[_Row]:
    """Yield the rows in the order of the schema, derived values at the end of their section."""
    moot = {path: switch.key for path, switch in moot_keys(loaded.recipe).items()}
    derived = dict(_derived(composition)) if composition is not None else {}
    for spec in fields(loaded.recipe):
        section = getattr(loaded.recipe, spec.name)
        yield from _tree_rows(section, spec.name, loaded, composition, moot)
        for path, (value, story) in derived.items():
            if path.startswith(f"{spec.name}."):
                yield _Row(path=path, value=value, story=f"derived: {story}", given=False)


def _tree_rows(
    value: Any,
    path: str,
    loaded: LoadedRecipe,
    composition: Composition | None,
    moot: Mapping[str, str],
    default: str = "default",
) -> Iterator[_Row]:
    """Yield the rows of one value and of all below it; `default` is the story of what nobody gave."""
    owner, _, name = path.partition(".")
    substituted = composition is not None and owner in {one.kind for one in composition.substitutions}
    if composition is not None and owner in BACKEND_SECTIONS and name == "options" and not substituted:
        part = getattr(composition, owner)
        value, default = part.options, f"default of {owner} {part.offer.name!r}"
    entries: dict[str, Any] | None = None
    if is_dataclass(value) and not isinstance(value, type):
        entries = {spec.name: getattr(value, spec.name) for spec in fields(value)}
    elif isinstance(value, Mapping):
        entries = dict(value)
    if entries:
        yield _Row(path=path, value=None)
        for key, entry in entries.items():
            yield from _tree_rows(entry, join(path, key), loaded, composition, moot, default)
        return
    text = "{}" if entries is not None else scalar_text(value)
    story = str(loaded.provenance[path]) if path in loaded.provenance else default
    if path in moot and not loaded.provenance.is_explicit(path):
        told = "without effect" in story
        yield _Row(path=path, value=text, story=story if told else f"{story}; no effect: see {moot[path]}", given=False)
    else:
        yield _Row(path=path, value=text, story=story)


def _derived(composition: Composition) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield what follows from the recipe: dotted key, value, how."""
    recipe, degrees = composition.recipe, composition.degrees
    launch, train = recipe.launch, recipe.train
    counts = count_parameters(recipe.model)
    for one in composition.substitutions:
        yield f"{one.kind}.used", (one.used, f"on_unavailable.{one.kind}, because {sentences(one.reasons)}")
    yield "model.parameters", (f"{counts.total:_}", "without MTP modules")
    yield "model.activated_parameters", (f"{counts.activated:_}", "used by one token, without MTP modules")
    if counts.mtp:
        yield "model.mtp_parameters", (f"{counts.mtp:_}", "of the MTP modules")
    yield (
        "parallel.world_size",
        (str(degrees.world), f"launch.nnodes {launch.nnodes} x launch.nproc_per_node {launch.nproc_per_node}"),
    )
    yield "parallel.data_ranks", (str(degrees.data_ranks), f"world_size {degrees.world} / pp {degrees.pp}")
    yield (
        "parallel.dp_shard",
        (str(degrees.dp_shard), f"data_ranks {degrees.data_ranks} / dp_replicate {degrees.dp_replicate}"),
    )
    yield "parallel.edp", (str(degrees.edp), f"data_ranks {degrees.data_ranks} / ep {degrees.ep}")
    yield (
        "parallel.experts_per_rank",
        (str(recipe.model.n_routed_experts // degrees.ep), f"n_routed_experts / ep {degrees.ep}"),
    )
    yield (
        "train.micro_batches_per_step",
        (
            str(composition.num_micro_batches),
            f"global_batch_size {train.global_batch_size} / data_ranks {degrees.data_ranks} "
            f"/ micro_batch_size {train.micro_batch_size}",
        ),
    )
    yield (
        "train.tokens_per_step",
        (f"{composition.tokens_per_step:_}", f"global_batch_size {train.global_batch_size} x seq_len {train.seq_len}"),
    )


def _no_such_key(key: str, known: Sequence[str]) -> str:
    """Return the message for a key that does not exist."""
    near = near_keys(key, known)
    hint = did_you_mean(near) if near else "Leave the key away to see them all."
    return f"the recipe has no key {key!r}. {hint}"
