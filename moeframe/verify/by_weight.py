"""Wrong means: in losses by their values, in gradients by the weight that each sequence has."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from moeframe.verify.causes import WEIGHT_CAUSES, factor_value
from moeframe.verify.compare import groups_of
from moeframe.verify.findings import Case, Finding, names_of
from moeframe.verify.records import Array, RankNumbers
from moeframe.verify.weights import (
    MEANS,
    PROBE,
    Basis,
    Division,
    division_of,
    loss_under,
    matching_mean,
    uniform_weight,
    weights_in,
)

__all__ = ["find_weights"]

_NEAR: Final = 1e-6
_COMPONENTS: Final = {"ce_loss": "ce", "balance_loss": "balance", "mtp_loss": "mtp 1"}


def find_weights(cases: Sequence[Case], reference: RankNumbers, basis: Callable[[], Basis]) -> list[Finding]:
    """Return which parts of the loss have wrong weights, and of which wrong mean they are.

    `basis` is called when some gradient of a first step is off by no single factor.
    """
    sequences = reference.sequences
    assert sequences is not None
    found: dict[tuple[str, str, str], list[str]] = {}
    taken: Basis | None = None
    for case in cases:
        cut = division_of(case.ranks)
        for component, rule in _wrong_losses(case, reference, cut):
            found.setdefault((f"value of the {component} loss", component, rule), []).append(case.title)
        gradient = _crooked_gradient(case, reference)
        if gradient is None:
            continue
        taken = taken or basis()
        for component, weights_G in (weights_in(gradient, taken, sequences) or {}).items():
            rule_found = _rule(component, weights_G, sequences.tokens[component], cut, case)
            if rule_found is not None:
                key = (f"gradient of the {component} loss", component, rule_found)
                found.setdefault(key, []).append(case.title)
    return [
        Finding(
            layouts=tuple(titles),
            what=what,
            ratio=rule,
            cause=_cause(component, rule),
            details="found by the weight that every sequence has",
        )
        for (what, component, rule), titles in found.items()
    ]


def _crooked_gradient(case: Case, reference: RankNumbers) -> Array | None:
    """Return a first step's gradient of `PROBE` when some gradient differs by no single factor."""
    if case.compared.first_step != 0:
        return None
    groups = groups_of(case.compared, "gradients", names_of(reference, "gradients"))
    if all(group.ratio is not None for group in groups):
        return None
    held = [numbers.steps[0].gradients for numbers in case.ranks]
    return next((gradients[PROBE] for gradients in held if PROBE in gradients), None)


def _rule(component: str, weights_G: Array, tokens_G: Array, cut: Division, case: Case) -> str | None:
    """Return the wrong mean or the factor that gives these weights; None for the right ones."""
    mean = matching_mean(weights_G, tokens_G, cut)
    if mean is not None:
        return None if mean == "right" else mean
    uniform = uniform_weight(weights_G)
    if uniform is None:
        return "unequal weights"
    for known, rule, _ in WEIGHT_CAUSES:
        value = factor_value(rule, case.sizes)
        if fnmatchcase(component, known) and value is not None and math.isclose(uniform, value, rel_tol=1e-4):
            return f"x{uniform:.3f} = {rule}"
    return f"x{uniform:.3f}"


def _cause(component: str, rule: str) -> str | None:
    name = rule.rpartition(" = ")[2]
    return next((why for known, wrong, why in WEIGHT_CAUSES if wrong == name and fnmatchcase(component, known)), None)


def _wrong_losses(case: Case, reference: RankNumbers, cut: Division) -> Iterator[tuple[str, str]]:
    """Yield losses of a first step that have the value of a wrong mean, and which mean that is."""
    sequences = reference.sequences
    assert sequences is not None
    if case.compared.first_step != 0:
        return
    for difference in {one.name: one for one in case.compared.of("losses")}.values():
        component = _COMPONENTS.get(difference.name)
        if component is None or (component == "mtp 1" and "mtp 2" in sequences.sums):
            continue  # of several depths only the mean is reported
        rank = next(numbers for numbers in case.ranks if numbers.rank == difference.rank)
        value = rank.steps[0].losses[difference.name]
        for rule in MEANS:
            if math.isclose(value, loss_under(rule, component, sequences, cut), rel_tol=_NEAR):
                yield component, rule
                break
