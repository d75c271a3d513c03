"""Wrong clip norms, where the gradients are right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy

from moeframe.verify.causes import NORM_CAUSES, Squares
from moeframe.verify.compare import share_of
from moeframe.verify.findings import Case, Finding
from moeframe.verify.records import RankNumbers

__all__ = ["find_norms"]

_NEAR: Final = 1e-6


def find_norms(cases: Sequence[Case], reference: RankNumbers) -> Iterator[Finding]:
    """Yield why first norms are wrong: the mistake must give the norm of every rank of every layout."""
    fit = [case for case in cases if case.compared.first_step in (0, None) and not case.compared.of("gradients")]
    wrong = [case for case in fit if case.compared.of("norm")]
    if not wrong:
        return
    seen = [(numbers.steps[0].grad_norm, _squares(case, numbers, reference)) for case in fit for numbers in case.ranks]
    cause = next(
        (
            row.why
            for row in NORM_CAUSES
            if all(math.isclose(norm, row.norm(squares), rel_tol=_NEAR) for norm, squares in seen)
        ),
        None,
    )
    for case in wrong:
        norms = [numbers.steps[0].grad_norm for numbers in case.ranks]
        shown = ", ".join(dict.fromkeys(f"{norm:.6g}" for norm in norms))
        local = max(norms) - min(norms) > _NEAR * max(norms)
        partial = "ranks report different norms: the sum over ranks is missing or partial" if local else None
        yield Finding(
            layouts=(case.title,),
            what="clip norm",
            ratio=f"{shown} in place of {reference.steps[0].grad_norm:.6g}",
            cause=cause or partial,
            details="the gradients themselves are right",
        )


def _squares(case: Case, numbers: RankNumbers, reference: RankNumbers) -> Squares:
    gradients, own = reference.steps[0].gradients, numbers.steps[0].gradients

    def total(names: Sequence[str], *, share: bool = False) -> float:
        parts = [share_of(numbers, name, gradients[name]) if share else gradients[name] for name in names]
        return float(sum(numpy.square(part).sum() for part in parts))

    dense = [name for name in gradients if name not in reference.experts]
    experts = [name for name in gradients if name in reference.experts]
    own_experts = [name for name in experts if name in own]
    return Squares(
        dense=total(dense),
        experts=total(experts),
        own_dense=total([name for name in dense if name in own]),
        own_experts=total(own_experts, share=True),
        stage_experts=total(own_experts),
        sizes=case.sizes,
    )
