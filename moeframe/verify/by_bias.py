"""Wrong expert biases, where what came before them is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy

from moeframe.verify.causes import BIAS_CAUSES
from moeframe.verify.findings import Case, Finding
from moeframe.verify.records import Array, RankNumbers

__all__ = ["find_biases"]

_DIGITS: Final = 9


def find_biases(cases: Sequence[Case], reference: RankNumbers) -> Iterator[Finding]:
    """Yield by which rule wrong biases were updated."""
    found: dict[str, list[str]] = {}
    for case in cases:
        if case.compared.of("biases") and not case.compared.of("gradients"):
            found.setdefault(_how(case, reference), []).append(case.title)
    for how, titles in found.items():
        yield Finding(
            layouts=tuple(titles),
            what="expert bias (e_score_correction_bias)",
            ratio=None,
            cause=BIAS_CAUSES.get(how),
            details="after its update",
        )


def _how(case: Case, reference: RankNumbers) -> str:
    """Return the key of `BIAS_CAUSES` whose rule gives the biases of all ranks, or an empty string."""
    step = case.compared.of("biases")[0].step
    speed = case.layout.recipe.model.bias_update_speed
    fitting = ["own loads", "frozen", "sign"]
    versions: dict[str, set[bytes]] = {}
    for numbers in case.ranks:
        for name, after_E in numbers.steps[step].biases.items():
            right_E = _towards_balance(reference.steps[step].own_loads[name], speed)
            before_E = reference.steps[step].biases[name] - right_E
            own_E = _towards_balance(numbers.steps[step].own_loads[name], speed)
            changes = {"own loads": own_E, "frozen": 0 * right_E, "sign": -right_E}
            fitting = [how for how in fitting if numpy.allclose(after_E, before_E + changes[how], rtol=0, atol=1e-10)]
            versions.setdefault(name, set()).add(numpy.round(after_E, _DIGITS).tobytes())
    if fitting:
        return fitting[0]
    return "ranks differ" if any(len(different) > 1 for different in versions.values()) else ""


def _towards_balance(load_E: Array, speed: float) -> Array:
    change_E: Array = speed * numpy.sign(load_E.mean() - load_E)
    return change_E
