"""What must be true of a recipe, whatever its backends: pure functions from a recipe to problems.

A rule reads as little as it needs and yields each problem as soon as it knows it: in a recipe with unreadable values
the rules that do not touch them still speak.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Final

from moeframe.config.layouts import layouts, settings
from moeframe.config.model_rules import MODEL_RULES
from moeframe.config.moot import value_at
from moeframe.config.schema import Recipe
from moeframe.config.typed import UnknownValueError
from moeframe.errors import Problem
from moeframe.mesh.degrees import Degrees, divisors

__all__ = ["RULES", "Rule", "degrees_of", "recipe_problems", "run_rules"]

Rule = Callable[[Recipe], Iterable[Problem]]

_AT_LEAST: Final[dict[str, int]] = {
    "train.steps": 1,
    "train.seq_len": 1,
    "train.global_batch_size": 1,
    "train.micro_batch_size": 1,
    "train.seed": 0,
    "train.eval_every": 0,
    "train.eval_sequences": 1,
    "train.loads_every": 0,
    "checkpoint.every": 0,
    "checkpoint.keep": 1,
    "launch.nnodes": 1,
    "launch.nproc_per_node": 1,
    "optimizer.lr_schedule.warmup_steps": 0,
    "optimizer.lr_schedule.constant_steps": 0,
    "optimizer.lr_schedule.decay_steps": 0,
    "optimizer.lr_schedule.min_lr_steps": 0,
}
_POSITIVE: Final = (
    "optimizer.lr",
    "optimizer.eps",
    "optimizer.clip_grad_norm",
    "debug.ledger_timeout_s",
    "watchdog.min_s",
    "watchdog.median_steps",
    "watchdog.first_step_s",
    "watchdog.save_s",
)
_NOT_NEGATIVE: Final = ("optimizer.weight_decay", "optimizer.lr_schedule.min_lr", "optimizer.lr_schedule.final_lr")
_MAX_SEED: Final = 2**63 - 1
_MAX_INT: Final = 2**31 - 1
_MAX_LAUNCH: Final = 2**20
_LONGEST_NAME: Final = 255
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def recipe_problems(recipe: Recipe) -> list[Problem]:
    """Return everything that is wrong with a recipe, as far as that can be said without its backends."""
    return run_rules(RULES, recipe)


def run_rules(rules: Iterable[Rule], recipe: Recipe) -> list[Problem]:
    """Return the problems that rules find; a rule that touches an unreadable value stops there."""
    found: list[Problem] = []
    for rule in rules:
        try:
            found.extend(rule(recipe))
        except UnknownValueError:
            continue
    return found


def degrees_of(recipe: Recipe) -> Degrees:
    """Return the parallel degrees of a recipe, in the world that it launches.

    Raises:
        UnknownValueError: the launch section is out of its range, which other rules report.
    """
    parallel, launch, world = recipe.parallel, recipe.launch, recipe.world_size
    if not (1 <= launch.nnodes <= _MAX_LAUNCH and 1 <= launch.nproc_per_node <= _MAX_LAUNCH):
        raise UnknownValueError
    return Degrees(world=world, pp=parallel.pp, dp_replicate=parallel.dp_replicate, ep=parallel.ep)


def _name(recipe: Recipe) -> Iterator[Problem]:
    length = len(str(recipe.name))
    if length > _LONGEST_NAME:
        yield Problem(
            path="name",
            message=f"given a name of {length} characters; run directories are named after it, and file systems take "
            f"{_LONGEST_NAME}.",
            fix="Shorten it.",
        )
    elif not _NAME.fullmatch(str(recipe.name)):
        yield Problem(
            path="name",
            message=f"given {recipe.name!r}; run directories are named after it.",
            fix="Use letters, digits, '.', '_' and '-', and start with a letter or a digit.",
        )


def _at_least(key: str, lowest: int) -> Rule:
    highest = {"train.seed": _MAX_SEED, "launch.nnodes": _MAX_LAUNCH, "launch.nproc_per_node": _MAX_LAUNCH}.get(
        key, _MAX_INT
    )

    def rule(recipe: Recipe) -> Iterator[Problem]:
        value = value_at(recipe, key)
        if value is not None and value < lowest:
            yield Problem(path=key, message=f"given {value}; must be {lowest} or more.", fix="Raise it.")
        if value is not None and value > highest:
            yield Problem(path=key, message=f"given {value}; must be {highest} or less.", fix="Lower it.")

    return rule


def _positive(key: str) -> Rule:
    def rule(recipe: Recipe) -> Iterator[Problem]:
        value = value_at(recipe, key)
        if value is not None and not (value > 0 and math.isfinite(value)):
            yield Problem(path=key, message=f"given {value}; must be a finite number above 0.", fix="Correct it.")

    return rule


def _not_negative(key: str) -> Rule:
    def rule(recipe: Recipe) -> Iterator[Problem]:
        value = value_at(recipe, key)
        if value is not None and not (value >= 0 and math.isfinite(value)):
            yield Problem(path=key, message=f"given {value}; must be a finite number, 0 or more.", fix="Correct it.")

    return rule


def _betas(recipe: Recipe) -> Iterator[Problem]:
    for index, beta in enumerate(recipe.optimizer.betas):
        if not 0 <= beta < 1:
            message = f"given {beta}; must be at least 0 and below 1."
            yield Problem(path=f"optimizer.betas.{index}", message=message, fix="DeepSeek-V3 uses [0.9, 0.95].")


def _learning_rates(recipe: Recipe) -> Iterator[Problem]:
    peak = recipe.optimizer.lr
    for name in ("min_lr", "final_lr"):
        value = getattr(recipe.optimizer.lr_schedule, name)
        if value is not None and value > peak:
            yield Problem(
                path=f"optimizer.lr_schedule.{name}",
                message=f"given {value}; must not exceed the peak, optimizer.lr = {peak}.",
                fix="Lower it, or raise optimizer.lr.",
            )


def _recompute_phases(recipe: Recipe) -> Iterator[Problem]:
    phases = recipe.train.recompute_phases
    if len(set(phases)) != len(phases) or not phases:
        yield Problem(
            path="train.recompute_phases",
            message=f"given [{', '.join(phases)}]; must name one phase or more, each once.",
            fix="Phases that can be recomputed: attend, experts." + (" Or use train.recompute=none." * (not phases)),
        )


def _compiled(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.train.compile:
        return
    for path, value, off, why in (
        (
            "train.recompute",
            recipe.train.recompute,
            "none",
            "compiled modules save other tensors when they run again in the backward.",
        ),
        ("debug.poison", recipe.debug.poison, False, "compiled modules allocate memory past torch's own operators."),
        ("debug.ledger", recipe.debug.ledger, False, "torch runs no compiled module while operators are watched."),
    ):
        if value != off:
            given, wanted = str(value).lower(), str(off).lower()
            yield Problem(
                path=path,
                message=f"given {given} with train.compile=true; {why}",
                fix=f"Use {path}={wanted}, or train.compile=false.",
            )


def _context_length(recipe: Recipe) -> Iterator[Problem]:
    longest = recipe.model.max_position_embeddings
    if recipe.train.seq_len > longest:
        yield Problem(
            path="train.seq_len",
            message=f"given {recipe.train.seq_len}; must not exceed model.max_position_embeddings = {longest}.",
            fix=f"Use {longest} or less, or raise model.max_position_embeddings.",
        )


def _mtp_has_targets(recipe: Recipe) -> Iterator[Problem]:
    length, modules = recipe.train.seq_len, recipe.model.num_nextn_predict_layers
    if 1 <= length <= modules:
        yield Problem(
            path="train.seq_len",
            message=f"given {length}; MTP module {modules} (model.num_nextn_predict_layers) predicts {modules + 1} "
            f"tokens ahead and would find no target in a sequence.",
            fix=f"Use {modules + 1} or more, or fewer MTP modules.",
        )


def _mesh(recipe: Recipe) -> Iterator[Problem]:
    if not 1 <= recipe.model.n_routed_experts <= _MAX_INT:
        return
    for path, message, fix in degrees_of(recipe).problems(recipe.model.n_routed_experts):
        given = getattr(recipe.parallel, path.rpartition(".")[2])
        more = f" {_with_more_processes(recipe, path, given)}" if given > 1 else ""
        yield Problem(path=path, message=message, fix=f"{fix}{more}")


def _with_more_processes(recipe: Recipe, path: str, given: int) -> str:
    """Return what makes the degree at `path` legal as it is, if anything does."""
    with suppress(UnknownValueError):
        for other in layouts(recipe):
            return f"To have {path}={given}: {settings(recipe, other)}."
    experts = recipe.model.n_routed_experts
    if path == "parallel.ep" and experts % given:
        most = ", ".join(map(str, divisors(experts)))
        return f"With more processes (launch.nproc_per_node, launch.nnodes) any divisor of the experts: {most}."
    return "More processes allow more: raise launch.nproc_per_node or launch.nnodes."


def _batch(recipe: Recipe) -> Iterator[Problem]:
    train, degrees = recipe.train, degrees_of(recipe)
    smallest = min(train.global_batch_size, train.micro_batch_size, degrees.pp)
    if smallest < 1 or train.global_batch_size > _MAX_INT or degrees.world % degrees.pp:
        return
    ranks, batch = degrees.data_ranks, train.global_batch_size
    if batch % ranks:
        below, above = batch // ranks * ranks, (batch // ranks + 1) * ranks
        yield Problem(
            path="train.global_batch_size",
            message=f"given {batch}; must be a multiple of the {ranks} data ranks "
            f"(world {degrees.world} / pp {degrees.pp}).",
            fix=f"Nearest legal: {f'{below} or ' if below else ''}{above}.",
        )
    elif batch // ranks % train.micro_batch_size:
        legal = ", ".join(map(str, divisors(batch // ranks)))
        yield Problem(
            path="train.micro_batch_size",
            message=f"given {train.micro_batch_size}; must divide the {batch // ranks} sequences of one data rank "
            f"(global_batch_size {batch} / {ranks} data ranks).",
            fix=f"Legal: {legal}.",
        )


RULES: Final[tuple[Rule, ...]] = (
    _name,
    *MODEL_RULES,
    *(_at_least(key, lowest) for key, lowest in _AT_LEAST.items()),
    *(_positive(key) for key in _POSITIVE),
    *(_not_negative(key) for key in _NOT_NEGATIVE),
    _betas,
    _learning_rates,
    _recompute_phases,
    _compiled,
    _context_length,
    _mtp_has_targets,
    _mesh,
    _batch,
)
